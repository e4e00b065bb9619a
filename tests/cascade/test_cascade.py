"""Cascades of a network: against predictions of each cut by itself, and against arrays of outcomes."""

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import nestling as nl
from nestling.cascade import CASCADE_FILE
from nestling.cascade.outcomes import ANSWERS_ALL, LEFT_OUT
from nestling.errors import ArgumentError, BudgetError, NestlingError, RunError
from nestling.prediction import ClassPrediction
from nestling.storage import read_json, write_json

CUTS = (0.25, 0.5, 1.0)


def batches_of(number, seed, size=64):
    """Points of four classes that overlap."""
    noise = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 4
    x = torch.nn.functional.one_hot(labels, 6).float() + 0.6 * torch.randn(number, 6, generator=noise)
    return list(zip(x.split(size), labels.split(size), strict=True))


@pytest.fixture(scope="module")
def nested():
    torch.manual_seed(0)
    network = nl.models.build("mlp", hidden=[32, 16], in_features=6, num_classes=4)
    found = nl.nest(network, batches_of(8, 0)[0][0], num_blocks=8, weights="gaussian")
    train = torch.utils.data.TensorDataset(*(torch.cat(own) for own in zip(*batches_of(320, 1), strict=True)))
    nl.train(found, (train, train), nl.Recipe(epochs=6, batch_size=32, samples=1, cuts=(0.25, 1.0)), quiet=True)
    return found.eval()


@pytest.fixture(scope="module")
def fitted(nested):
    return nl.cascade(nested, CUTS, batches_of(400, 2), goal="macs=0.8x", samples=0, score="entropy")


def with_thresholds(cascade, *thresholds):
    pairs = zip(cascade.stages, thresholds, strict=True)
    return dataclasses.replace(cascade, stages=tuple(dataclasses.replace(s, threshold=own) for s, own in pairs))


def alone(cascade, number, x):
    """The prediction of one stage for all inputs."""
    stage = cascade.stages[number]
    return nl.predict(cascade.nested, x, cut=stage.cut, samples=0, calibration=stage.calibration)


def test_each_input_is_answered_by_the_first_stage_that_is_sure(fitted):
    x = batches_of(90, 3, size=90)[0][0]
    predictions = [alone(fitted, number, x) for number in range(3)]
    first, second = (float(own.entropy.median()) for own in predictions[:2])
    found = with_thresholds(fitted, first, second, ANSWERS_ALL).predict(x)
    assert isinstance(found, ClassPrediction)
    costs = np.cumsum([stage.macs for stage in fitted.stages])
    for row in range(90):
        sure = [float(predictions[0].entropy[row]) <= first, float(predictions[1].entropy[row]) <= second, True]
        stage = sure.index(True)
        assert found.stages[row] == stage
        assert found.macs[row] == costs[stage]
        torch.testing.assert_close(found.probs[row], predictions[stage].probs[row], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(found.aleatoric[row], predictions[stage].aleatoric[row], atol=1e-6, rtol=1e-5)
    assert found.answered.all()
    assert set(found.stages.tolist()) == {0, 1, 2}
    assert found.mean_macs == pytest.approx(costs[found.stages].mean())


def test_a_stage_runs_on_what_reaches_it_alone(fitted, monkeypatch):
    sizes = []

    def counted(network, x, **options):
        sizes.append((len(x), options["cut"].num_blocks))
        return nl.predict(network, x, **options)

    monkeypatch.setitem(vars(__import__("sys").modules["nestling.cascade.record"]), "predict", counted)
    x = batches_of(90, 3, size=90)[0][0]
    median = float(alone(fitted, 0, x).entropy.median())
    with_thresholds(fitted, median, LEFT_OUT, ANSWERS_ALL).predict(x)
    assert sizes == [(90, 4), (45, 16)]
    sizes.clear()
    with_thresholds(fitted, 9.0, 9.0, ANSWERS_ALL).predict(x)
    assert sizes == [(90, 4)]


@pytest.mark.parametrize("number", [0, 1])
def test_few_examples(fitted, number):
    """None and one, at every stage."""
    x = batches_of(8, 4)[0][0][:number]
    for thresholds, stage in (((9.0, 9.0), 0), ((-1.0, 9.0), 1), ((LEFT_OUT, -1.0), 2)):
        found = with_thresholds(fitted, *thresholds, ANSWERS_ALL).predict(x)
        assert found.probs.shape == (number, 4)
        assert found.stages.tolist() == [stage] * number


def test_scores_are_those_of_the_answers(fitted):
    """Sums over the examples, and the same figures from the outcomes of all stages."""
    unsure = with_thresholds(fitted, 0.5, 0.7, 1.0)
    batches = batches_of(300, 5)
    scores, compared = unsure.evaluate(batches), unsure.compare(batches)
    parts = [unsure.predict(x) for x, _ in batches]
    labels = torch.cat([y for _, y in batches])
    stages, known = torch.cat([p.stages for p in parts]), torch.cat([p.answered for p in parts])
    right, log_probs = torch.cat([p.labels for p in parts]) == labels, torch.cat([p.log_probs for p in parts])
    assert scores.count == 300
    assert scores.unanswered == pytest.approx(float((~known).double().mean()))
    assert 0 < scores.unanswered < 0.9
    assert scores.scores.accuracy == pytest.approx(float(right[known].double().mean()))
    assert scores.scores.nll == pytest.approx(-float(log_probs[known, labels[known]].mean()), rel=1e-5)
    for number, stage in enumerate(scores.stages):
        own = known & (stages == number)
        assert stage.answered == pytest.approx(float(own.double().mean()))
        assert stage.reached == pytest.approx(float((stages >= number).double().mean()))
        assert stage.accuracy == pytest.approx(float(right[own].double().mean()))
    macs = torch.cat([p.macs for p in parts])
    assert scores.mean_macs == pytest.approx(float(macs.mean()))
    assert scores.macs_bounds[0] < scores.mean_macs < scores.macs_bounds[1]
    assert (compared.chosen.macs, compared.chosen.accuracy) == pytest.approx((scores.mean_macs, scores.scores.accuracy))
    full = nl.evaluate(fitted.nested, batches, cut=1.0, samples=0).accuracy
    assert compared.alone[-1].accuracy == pytest.approx(full)
    assert compared.loss == pytest.approx(full - float((right & known).double().mean()))
    assert json.loads(json.dumps(scores.to_dict()))["unanswered"] == scores.unanswered


def test_latencies_are_averaged_by_what_reaches_a_stage(fitted, monkeypatch):
    monkeypatch.setattr(type(fitted), "latencies", lambda _: [1.0, 2.0, 4.0])
    scores = with_thresholds(fitted, 0.4, LEFT_OUT, ANSWERS_ALL).evaluate(batches_of(100, 5), latency=True)
    assert scores.mean_ms == pytest.approx(1.0 + 4.0 * scores.stages[1].reached)
    assert scores.ms_share == pytest.approx(scores.mean_ms / 4)


def test_times_are_what_a_goal_in_milliseconds_counts(nested):
    """With times in the ratio of the multiply-adds both goals fit the same; with others the cheaper stage changes."""
    batches, options = batches_of(400, 2), {"samples": 0, "score": "entropy"}
    by_macs = nl.cascade(nested, CUTS, batches, goal="macs=0.7x", **options)
    alike = {stage.name: stage.macs / 100 for stage in by_macs.stages}
    by_ms = nl.cascade(nested, CUTS, batches, goal="latency_ms=0.7x", times=alike, **options)
    assert by_ms.thresholds == by_macs.thresholds
    assert [point.ms for point in by_ms.points] == pytest.approx([point.macs / 100 for point in by_macs.points])
    flat = nl.cascade(nested, CUTS, batches, goal="latency_ms=1.1", times=(1.0, 1.0, 1.01), **options)
    assert [stage.name for stage in flat.running] == ["1"]  # a stage before it costs more than it saves
    beside = by_ms.compare(batches)
    assert beside.chosen.ms <= 0.7 * by_ms.stages[-1].ms + 1e-9
    assert [point.ms for point in beside.alone] == [stage.ms for stage in by_ms.stages]
    scores = by_ms.evaluate(batches)
    assert scores.mean_ms == pytest.approx(beside.chosen.ms)
    assert by_macs.compare(batches).chosen.ms is None


def test_a_loss_is_reached_at_the_least_time_if_times_are_known(nested):
    batches, options = batches_of(400, 2), {"goal": "loss=0.1", "samples": 0, "score": "entropy"}
    by_macs = nl.cascade(nested, CUTS, batches, **options)
    dear_first = nl.cascade(nested, CUTS, batches, times={"0.25": 3.0, "0.5": 0.1, "1": 3.1}, **options)
    assert dear_first.stages[0].threshold == LEFT_OUT
    assert by_macs.goal == dear_first.goal


def test_times_are_measured_where_a_goal_needs_them(nested, monkeypatch):
    monkeypatch.setitem(
        vars(__import__("sys").modules["nestling.cascade.cascade"]), "latencies_ms", lambda *_: [1, 2, 4]
    )
    found = nl.cascade(nested, CUTS, batches_of(200, 2), goal="latency_ms=3.5", samples=0)
    assert [stage.ms for stage in found.stages] == [1, 2, 4]
    assert found.points[0].ms < found.points[-1].ms


def test_a_cascade_without_an_answer_has_no_scores(fitted):
    scores = with_thresholds(fitted, -1.0, -1.0, -1.0).evaluate(batches_of(20, 5))
    assert scores.scores is None
    assert scores.unanswered == 1.0
    assert [stage.accuracy for stage in scores.stages] == [None] * 3


@pytest.mark.parametrize("score", ["auto", "entropy", "mutual_information", "max_probability"])
def test_goals_hold_on_the_data_of_the_fit(nested, score):
    batches = batches_of(400, 2)
    cheap = nl.cascade(nested, CUTS, batches, goal="macs=0.6x", score=score, samples=3)
    assert cheap.compare(batches).chosen.macs <= 0.6 * cheap.stages[-1].macs + 1e-6
    assert score in ("auto", cheap.score)
    assert cheap.samples == 3
    again = nl.cascade(nested, CUTS, batches, goal="macs=0.6x", score=score, samples=3)
    assert again.to_dict() == cheap.to_dict()


def test_the_order_of_the_cuts_does_not_matter(nested, fitted):
    other = nl.cascade(nested, CUTS[::-1], batches_of(400, 2), goal="macs=0.8x", samples=0, score="entropy")
    assert other.to_dict() == fitted.to_dict()
    assert [stage.name for stage in other.stages] == ["0.25", "0.5", "1"]


def test_identical_cuts_are_one(nested):
    found = nl.cascade(nested, (0.5, 0.5, 0.5), batches_of(200, 2), samples=0)
    scores = found.evaluate(batches_of(200, 2))
    assert scores.macs_share == 1.0
    assert scores.scores.accuracy == nl.evaluate(nested, batches_of(200, 2), cut=0.5, samples=0).accuracy


def test_a_guarantee_is_of_data_that_did_not_choose(nested):
    found = nl.cascade(nested, CUTS, batches_of(600, 2), goal="early_errors=0.2", samples=0)
    proof = found.guarantee
    assert (proof.most, proof.delta, proof.num_examples, found.num_examples) == (0.2, 0.1, 300, 300)
    assert proof.num_errors <= 0.2 * proof.num_early
    assert found.stages[-1].threshold == ANSWERS_ALL


def test_some_inputs_get_no_answer(nested):
    found = nl.cascade(nested, CUTS, batches_of(400, 2), goal="macs=0.8x", samples=0, dont_know=0.1)
    assert 0 < found.evaluate(batches_of(400, 2)).unanswered <= 0.1 + 1e-9
    assert "don't know" in repr(found)


def test_sets_are_of_the_answers_of_the_whole_cascade(nested, fitted):
    """The threshold is a quantile of what the stages at which examples end say of the label, counted by hand."""
    batches = batches_of(400, 2)
    parts = [(fitted.predict(x), y) for x, y in batches]
    assert len(set(torch.cat([p.stages for p, _ in parts]).tolist())) > 1
    scores = torch.cat([1 - p.probs[torch.arange(len(y)), y] for p, y in parts]).sort().values
    assert fitted.set_thresholds == pytest.approx({0.9: float(scores[360])}, abs=1e-6)  # the 361st of 400
    again = fitted.calibrated(batches, coverage=(0.5, 0.9))
    assert again.set_thresholds == pytest.approx({0.5: float(scores[200]), 0.9: float(scores[360])}, abs=1e-6)
    other = batches_of(300, 8)
    sets = again.evaluate(other).sets
    inside = torch.cat([again.predict(x).sets(0.5) for x, _ in other])
    labels = torch.cat([y for _, y in other])
    assert sets[0.5].coverage == pytest.approx(float(inside[torch.arange(300), labels].double().mean()))
    assert sets[0.5].size == pytest.approx(float(inside.sum(1).double().mean()))
    assert sets[0.9].coverage > sets[0.5].coverage


@pytest.mark.parametrize("goal", ["loss=0.02", "macs=0.5x", "early_errors=0.5"])
def test_sets_have_their_coverage_on_other_examples(nested, goal):
    """Over resampled splits, up to three standard errors of the mean; the sets are not all classes either."""
    x, y = (torch.cat(own) for own in zip(*batches_of(1200, 9), strict=True))
    found = []
    for seed in range(12):
        order = torch.randperm(1200, generator=torch.Generator().manual_seed(seed))
        own, other = [[(x[rows], y[rows])] for rows in (order[:300], order[300:])]
        options = {"goal": goal, "samples": 0, "score": "entropy", "coverage": 0.8}
        found.append(nl.cascade(nested, (0.25, 1.0), own, **options).evaluate(other).sets[0.8])
    coverages = np.array([sets.coverage for sets in found])
    assert coverages.mean() >= 0.8 - 3 * coverages.std() / np.sqrt(len(coverages))
    assert np.mean([sets.size for sets in found]) < 2.5


def test_threads_share_a_cascade(fitted):
    batches = batches_of(320, 6, size=20)
    unsure = with_thresholds(fitted, 0.3, 0.3, ANSWERS_ALL)
    expected = [unsure.predict(x) for x, _ in batches]
    with ThreadPoolExecutor(4) as threads:
        for found, alike in zip(threads.map(lambda b: unsure.predict(b[0]), batches), expected, strict=True):
            assert torch.equal(found.log_probs, alike.log_probs)
            assert torch.equal(found.stages, alike.stages)


def test_what_is_saved_is_read_back(fitted, tmp_path):
    unsure = with_thresholds(fitted, 0.4, LEFT_OUT, 0.9)
    unsure.save(tmp_path)
    found = nl.Cascade.load(tmp_path, fitted.nested)
    assert found.to_dict() == unsure.to_dict()
    assert found.thresholds == (0.4, LEFT_OUT, 0.9)
    assert found.points == fitted.points
    assert found.set_thresholds == fitted.set_thresholds
    x = batches_of(30, 7)[0][0]
    assert torch.equal(found.predict(x).log_probs, unsure.predict(x).log_probs)


def test_a_guarantee_is_read_back(nested, tmp_path):
    found = nl.cascade(nested, CUTS, batches_of(600, 2), goal="early_errors=0.2", samples=0)
    found.save(tmp_path)
    assert nl.Cascade.load(tmp_path, nested).guarantee == found.guarantee


DAMAGES = {
    "no stages": lambda saved: saved.update(stages=[]),
    "last left out": lambda saved: saved["stages"][-1].update(runs=False),
    "unknown score": lambda saved: saved.update(score="luck"),
    "text for a threshold": lambda saved: saved["stages"][0].update(threshold="low"),
    "width of no block": lambda saved: saved["stages"][0]["cut"].update(dict.fromkeys(saved["stages"][0]["cut"], 0)),
    "another group": lambda saved: saved["stages"][0].update(cut={"nothing": 1}),
    "no temperature": lambda saved: saved["stages"][0].update(temperature=0),
    "samples": lambda saved: saved.update(samples=-1),
    "a list": lambda saved: saved.update(guarantee=[1]),
    "too few thresholds": lambda saved: saved["points"][0].update(thresholds=[]),
    "negative time": lambda saved: saved["stages"][0].update(ms=-1.0),
    "coverage of 2": lambda saved: saved.update(set_thresholds={"2": 0.5}),
    "missing": lambda saved: saved.pop("goal"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_no_cascade_is_refused(fitted, tmp_path, damage):
    fitted.save(tmp_path)
    saved = read_json(tmp_path / CASCADE_FILE)
    DAMAGES[damage](saved)
    write_json(tmp_path / CASCADE_FILE, saved)
    with pytest.raises(RunError, match="is not a cascade"):
        nl.Cascade.load(tmp_path, fitted.nested)


def test_a_cascade_of_other_weights_is_refused(fitted, tmp_path):
    fitted.save(tmp_path)
    network = nl.models.build("mlp", hidden=[32, 16], in_features=6, num_classes=4)
    other = nl.nest(network, batches_of(8, 0)[0][0], num_blocks=8, weights="gaussian")
    with pytest.raises(RunError, match="other weights"):
        nl.Cascade.load(tmp_path, other)


BAD = {
    "a plain network": ({"nested": torch.nn.Linear(6, 4)}, "what nest gives"),
    "no cut": ({"cuts": ()}, "at least one"),
    "one number": ({"cuts": 0.5}, "a list of cuts"),
    "a cut of 2": ({"cuts": (0.5, 2.0)}, "a fraction"),
    "a goal of no name": ({"goal": "speed=3"}, "early_errors"),
    "a score of no name": ({"score": "luck"}, "max_probability"),
    "half of everything": ({"dont_know": 1.0}, "below 1"),
    "a used loader": ({"batches": iter([])}, "read again"),
    "no batch": ({"batches": []}, "at least one"),
    "numbers": ({"likelihood": "gaussian"}, "categorical"),
    "means that disagree": ({"score": "mutual_information", "samples": 0}, "draws no weights"),
    "nothing so cheap": ({"goal": "macs=1"}, "smallest"),
    "too few to prove": ({"goal": "early_errors=0.001"}, "examples can prove"),
    "two times for three": ({"times": (1.0,), "goal": "latency_ms=1"}, "one per cut"),
    "times of other cuts": ({"times": {"0.5": 1.0}}, "the milliseconds of 1 too"),
    "no time": ({"times": (0.0, 1.0)}, "times"),
    "a coverage of 1": ({"coverage": 1.0}, "coverage"),
    "pixels": ({"batches": [(torch.zeros(2, 6), torch.zeros(2, 3, dtype=torch.int64))]}, "target"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(nested, case):
    given, message = BAD[case]
    options = {"nested": nested, "cuts": (0.5, 1.0), "batches": batches_of(40, 2), "samples": 0} | given
    with pytest.raises(NestlingError, match=message) as raised:
        nl.cascade(**options)
    assert isinstance(raised.value, ArgumentError | BudgetError)


def test_a_cascade_prints_as_one_line(fitted):
    assert repr(with_thresholds(fitted, 0.4, LEFT_OUT, ANSWERS_ALL)) == "Cascade(0.25 -> 1; by entropy, for macs=0.8x)"
