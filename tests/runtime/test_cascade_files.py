"""A cascade in a file: it answers as the cascade in torch does, stage by stage, with numpy and its runtime alone."""

import dataclasses
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import nestling as nl
from nestling.cascade.outcomes import ANSWERS_ALL, LEFT_OUT
from nestling.errors import ArgumentError, RunError

sys.path.insert(0, str(Path(__file__).parents[1] / "delivery"))
from exported_networks import CLASSES, DATA, normalised, pictures, small_nested


@pytest.fixture(scope="module", autouse=True)
def quick_latency():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("nestling.running.cost"), "MEASURED_SECONDS", 0.0)
        yield


CUTS = (0.25, 0.5, 1.0)
TIE = 1e-5
"""How near to a threshold the score of a stage can be moved across it by rounding."""


def fitted(nested, score="entropy", **options):
    """A cascade with conformal sets, fitted to what the widest cut says of some pictures, and of some others not."""
    images = pictures(300, seed=5)
    likelihood = options.get("likelihood", "categorical")
    labels = nl.predict(nested, normalised(images), cut=1.0, samples=0, likelihood=likelihood).labels
    labels[::4] = torch.arange(75) % 2
    options = {"goal": "macs=0.8x", "samples": 0, "score": score, "coverage": (0.8, 0.9)} | options
    return nl.cascade(nested, CUTS, [(normalised(images), labels)], **options)


def alone(cascade, stage, images):
    """What a stage says of all pictures."""
    options = {"samples": 0, "likelihood": cascade.likelihood, "calibration": stage.calibration}
    return nl.predict(cascade.nested, normalised(images), cut=stage.cut, **options)


def with_quantiles(cascade, *shares):
    """Other temperatures, and thresholds below which a share of some pictures is, by each stage; None answers all."""
    stages = []
    for stage, share, temperature in zip(cascade.stages, shares, (0.07, 0.1, 0.14), strict=True):
        calibration = dataclasses.replace(stage.calibration, temperature=temperature)
        warm = dataclasses.replace(stage, calibration=calibration)
        scores = alone(cascade, warm, pictures(200)).unfamiliarity()[cascade.score]
        threshold = ANSWERS_ALL if share is None else float(scores.quantile(share))
        stages.append(dataclasses.replace(warm, threshold=threshold))
    return dataclasses.replace(cascade, stages=tuple(stages))


def check(cascade, path, number=400):
    """The same stages, answers, costs and sets as in torch, but for ties; all stages answer some."""
    images = pictures(number, seed=11)
    answers, p = nl.runtime.open_cascade(path).predict(images), cascade.predict(normalised(images))
    names = [stage.name for stage in cascade.running]
    places = [names.index(cascade.stages[stage].name) for stage in p.stages.tolist()]
    near = np.zeros(number, bool)
    for stage in cascade.running:
        scores = alone(cascade, stage, images).unfamiliarity()[cascade.score]
        near |= (scores - stage.threshold).abs().numpy() < TIE
    assert near.mean() < 0.02
    kept = ~near
    assert answers.stages[kept].tolist() == np.array(places)[kept].tolist()
    assert set(places) == set(range(len(names)))
    assert np.allclose(answers.probs[kept], p.probs[kept], atol=1e-5)
    assert answers.labels[kept].tolist() == p.labels[kept].tolist()
    assert answers.answered[kept].tolist() == p.answered[kept].tolist()
    assert answers.macs[kept].tolist() == p.macs[kept].tolist()
    assert [answers.widths[row] for row in np.flatnonzero(kept)] == [names[places[row]] for row in np.flatnonzero(kept)]
    inside = (1 - p.probs - cascade.set_thresholds[0.9]).abs().numpy() < TIE
    assert ((answers.in_set(0.9) == p.sets(0.9).numpy()) | inside)[kept].all()
    return answers, p


@pytest.fixture(scope="module")
def delivered(tmp_path_factory):
    """A cascade that does not always know, and its file, which has a width more."""
    nested, path = small_nested(), tmp_path_factory.mktemp("cascade") / "insects.onnx"
    cascade = with_quantiles(fitted(nested), 0.3, 0.4, 0.8)
    nl.export(nested, path, widths=[0.75, 1.0], cascade=cascade, data=DATA)
    return cascade, path


def test_a_file_answers_as_the_cascade_in_torch(delivered):
    answers, p = check(*delivered)
    assert 0 < answers.answered.mean() < 1
    assert answers.mean_macs == pytest.approx(p.mean_macs, rel=0.02)
    assert np.allclose(answers.uncertainty["entropy"], p.entropy, atol=1e-4)
    open_file = nl.runtime.open_cascade(delivered[1])
    assert repr(open_file) == "Cascade(0.25 -> 0.5 -> 1 -> don't know; by entropy, for macs=0.8x)"
    header = repr(answers).splitlines()[0].split()
    assert header[:3] == ["class", "probability", "entropy"]
    assert header[-1] == "width"
    assert "don't know" in repr(answers)


def test_the_file_has_the_widths_that_were_asked_for_and_those_of_the_cascade(delivered):
    rows = nl.runtime.open(delivered[1]).about["widths"]["table"]
    assert {row["name"] for row in rows} == {"0.25", "0.5", "0.75", "1"}


@pytest.mark.parametrize(
    ("last", "score", "shares"), [(3, "max_probability", (0.5, None, None)), (1, "entropy", (0.5, 0.5, None))]
)
def test_other_scores_and_likelihoods(tmp_path, last, score, shares):
    """Of three classes by the largest probability with a stage left out, and of one logit for two classes."""
    nested = small_nested(last)
    options = {"likelihood": "bernoulli"} if last == 1 else {}
    cascade = with_quantiles(fitted(nested, score, **options), *shares)
    if last == 3:
        first, middle, whole = cascade.stages
        cascade = dataclasses.replace(cascade, stages=(first, dataclasses.replace(middle, threshold=LEFT_OUT), whole))
    data = DATA | {"classes": CLASSES[: max(2, last)]}
    nl.export(nested, tmp_path / "own.onnx", cascade=cascade, data=data)
    check(cascade, tmp_path / "own.onnx")


def test_batches_of_any_size_are_answered_alike(delivered):
    cascade = nl.runtime.open_cascade(delivered[1])
    images = pictures(12, seed=2)
    whole = cascade.predict(images)
    parts = [cascade.predict(image) for image in images]
    assert [len(part) for part in parts] == [1] * 12
    assert np.allclose(whole.probs, np.concatenate([part.probs for part in parts]), atol=1e-6)
    assert whole.stages.tolist() == [int(part.stages[0]) for part in parts]


ALONE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import numpy as np
import nestling as nl
answers = nl.runtime.open_cascade(sys.argv[1], threads=1).predict(np.load(sys.argv[2]))
print(answers.stages.tolist())
"""


def test_no_torch_is_needed(delivered, tmp_path):
    cascade, path = delivered
    images = pictures(8, seed=2)
    np.save(tmp_path / "x.npy", images)
    shown = subprocess.run(
        [sys.executable, "-c", ALONE, path, tmp_path / "x.npy"], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout) == cascade.predict(normalised(images)).stages.tolist()


def test_a_file_without_a_cascade_is_refused(delivered, tmp_path):
    write_with(delivered[1], tmp_path / "plain.onnx", lambda record: record.pop("cascade"))
    with pytest.raises(RunError, match="has no cascade"):
        nl.runtime.open_cascade(tmp_path / "plain.onnx")


def test_a_cascade_that_the_file_can_not_run_is_refused(delivered, tmp_path):
    nested = small_nested(weights="gaussian")
    drawn = fitted(nested, samples=2)
    with pytest.raises(ArgumentError, match="samples=0"):
        nl.export(nested, tmp_path / "no.onnx", cascade=drawn, data=DATA)
    with pytest.raises(ArgumentError, match="another network"):
        nl.export(nested, tmp_path / "no.onnx", cascade=delivered[0], data=DATA)
    with pytest.raises(ArgumentError, match="cascade"):
        nl.export(nested, tmp_path / "no.onnx", cascade=drawn, cut=0.5, data=DATA)
    assert list(tmp_path.iterdir()) == []


DAMAGES = {
    "an unknown score": lambda record: record["cascade"].update(score="mutual_information"),
    "no stages": lambda record: record["cascade"].update(stages=[]),
    "temperature 0": lambda record: record["cascade"]["stages"][0].update(temperature=0),
    "a threshold of text": lambda record: record["cascade"]["stages"][0].update(threshold="low"),
    "a threshold that is no number": lambda record: record["cascade"]["stages"][0].update(threshold=float("nan")),
    "macs of text": lambda record: record["cascade"]["stages"][0].update(macs="1"),
    "a cut of none": lambda record: record["cascade"]["stages"][0].update(cut={"0": -1}),
    "no coverage": lambda record: record["cascade"].update(set_thresholds={"often": 0.5}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_that_is_no_cascade_is_refused(delivered, tmp_path, damage):
    write_with(delivered[1], tmp_path / "bad.onnx", DAMAGES[damage])
    with pytest.raises(RunError, match="cascade can't be used"):
        nl.runtime.open_cascade(tmp_path / "bad.onnx")


def test_a_cut_that_the_file_does_not_have_is_refused(delivered, tmp_path):
    write_with(
        delivered[1], tmp_path / "bad.onnx", lambda record: record["cascade"]["stages"][0].update(cut={"0": 1, "3": 1})
    )
    with pytest.raises(ArgumentError, match="one that the file has"):
        nl.runtime.open_cascade(tmp_path / "bad.onnx")


def write_with(source, target, damage):
    """The file with another record."""
    model = onnx.load(source)
    entry = next(entry for entry in model.metadata_props if entry.key == "nestling")
    record = json.loads(entry.value)
    damage(record)
    entry.value = json.dumps(record)
    onnx.save(model, target)
