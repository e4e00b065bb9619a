"""Temperatures and conformal thresholds, on data whose right answers are known."""

import json
import math

import pytest
import torch
from scipy import stats
from torch import nn

import nestling as nl
from nestling.prediction import Calibration, Categorical, Gaussian, calibrate, evaluate, predict
from nestling.prediction.calibrate import conformal_threshold, fit_temperature
from nestling.running.layers import VariationalLayer


class Fixed(nn.Module):
    """Gives its inputs as outputs, so that they can be chosen freely."""

    def forward(self, x):
        return x


def labelled(num, classes=5, sharpness=1.0, seed=0):
    """Logits, and labels drawn from the distribution they stand for when multiplied by ``sharpness``."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(num, classes, generator=generator)
    return logits, torch.multinomial((sharpness * logits).softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_known_temperature_is_found(temperature):
    logits, y = labelled(20_000, sharpness=1 / temperature)
    assert calibrate(Fixed(), [(logits, y)]).temperature == pytest.approx(temperature, rel=0.05)


def test_temperature_of_a_mixture_is_the_best_on_a_grid():
    generator = torch.Generator().manual_seed(0)
    outputs = 4 * torch.randn(3, 400, 5, generator=generator, dtype=torch.float64)
    y = outputs[0].argmax(1)
    found = fit_temperature(Categorical(), outputs, y)

    def loss(temperature):
        return -(outputs / temperature).softmax(2).mean(0).gather(1, y[:, None]).log().mean().item()

    grid = [math.exp(step / 200) for step in range(-500, 500)]
    assert loss(found) <= min(map(loss, grid)) + 1e-7
    assert abs(found - 1) > 0.1


def test_temperature_of_regression_scales_the_noise():
    target = 3 * torch.randn(5000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = fit_temperature(Gaussian(std=2.0), torch.zeros(1, 5000, 1, dtype=torch.float64), target)
    assert found == pytest.approx(target.square().mean().item() / 4, rel=1e-3)


def test_network_without_a_mistake_stays_in_the_range():
    logits = 5 * torch.eye(4).repeat(5, 1)
    assert 0.05 <= calibrate(Fixed(), [(logits, logits.argmax(1))]).temperature < 0.2


def test_threshold_by_hand():
    scores = torch.tensor([0.3, 0.1, 0.9, 0.5, 0.7, 0.2, 0.4, 0.6, 0.8])
    assert conformal_threshold(scores, 0.9) == pytest.approx(0.9)  # the ceil(10 * 0.9) = 9th of 9
    assert conformal_threshold(scores, 0.8) == pytest.approx(0.8)
    assert conformal_threshold(scores, 0.75) == pytest.approx(0.8)  # ceil(7.5) = 8
    assert conformal_threshold(scores, 0.05) == pytest.approx(0.1)


def test_too_few_examples_for_a_coverage():
    with pytest.raises(nl.RangeError, match=r"coverage: got 0.95.*with 10 examples. Calibrate on at least 19"):
        conformal_threshold(torch.rand(10), 0.95)
    assert math.isfinite(conformal_threshold(torch.rand(19), 0.95))


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_coverage_on_new_data_lies_within_its_bounds(kind):
    """Mean coverage over many splits: coverage of one split is Beta(k, n + 1 - k), k the rank of the threshold."""
    num, coverage, repeats = 99, 0.9, 60
    kept, total = 0.0, 0
    for repeat in range(repeats):
        if kind == "classes":
            (logits, y), (new, truth) = (labelled(n, sharpness=0.5, seed=2 * repeat + n) for n in (num, 400))
            options = {}
        else:
            generator = torch.Generator().manual_seed(repeat)
            logits, new = torch.randn(num, 2, generator=generator), torch.randn(400, 2, generator=generator)
            y, truth = (
                part[:, :1] + torch.empty(len(part), 1).exponential_(generator=generator) for part in (logits, new)
            )
            options = {"likelihood": "heteroscedastic_gaussian"}
        fitted = calibrate(Fixed(), [(logits, y)], coverage=coverage, **options)
        found = evaluate(Fixed(), [(new, truth)], calibration=fitted, **options).sets[coverage]
        kept, total = kept + found.coverage * 400, total + 400
        assert stats.beta(90, 10).ppf(1e-5) - 0.08 < found.coverage
    spread = math.sqrt(0.9 * 0.1 / total + stats.beta(90, 10).var() / repeats)
    assert abs(kept / total - stats.beta(90, 10).mean()) < 4 * spread


def test_sets_hold_the_truth_on_the_data_they_were_fitted_on():
    logits, y = labelled(500)
    fitted = calibrate(Fixed(), [(logits, y)], coverage=(0.5, 0.9))
    prediction = predict(Fixed(), logits, calibration=fitted)
    for coverage in (0.5, 0.9):
        sets = prediction.sets(coverage)
        held = sets.gather(1, y[:, None]).double().mean().item()
        assert held == pytest.approx(math.ceil(501 * coverage) / 500, abs=2.1e-3)
        scores = evaluate(Fixed(), [(logits, y)], calibration=fitted).sets[coverage]
        assert scores.coverage == pytest.approx(held, abs=2.1e-3)
        assert scores.size == pytest.approx(sets.sum(1).double().mean().item(), abs=1e-2)


def test_intervals_hold_the_truth():
    torch.manual_seed(0)
    output = torch.randn(400, 2)
    y = output[:, :1] + 3 * torch.randn(400, 1)
    fitted = calibrate(Fixed(), [(output, y)], likelihood="heteroscedastic_gaussian", coverage=0.8)
    low, high = predict(Fixed(), output, likelihood="heteroscedastic_gaussian", calibration=fitted).interval(0.8)
    assert ((low <= y) & (y <= high)).double().mean().item() == pytest.approx(0.8, abs=0.01)


@pytest.fixture(scope="module")
def nested():
    torch.manual_seed(0)
    network = nl.nest(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), torch.randn(2, 4), num_blocks=4)
    for part in network.modules():
        if isinstance(part, VariationalLayer):
            part.posterior.log_alpha.data.fill_(-1.0)
            part.posterior.mean.data.mul_(4)
    return network


@pytest.fixture(scope="module")
def loader():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(300, 4, generator=generator)
    return list(zip(x.split(64), torch.randint(3, (300,), generator=generator).split(64), strict=True))


def test_likelihood_is_never_worse_on_the_same_data_at_each_cut(nested, loader):
    cuts = [0.5, 1.0]
    fitted = calibrate(nested, loader, cut=cuts, coverage=0.8)
    before = evaluate(nested, loader, cut=cuts)
    after = evaluate(nested, loader, cut=cuts, calibration=fitted)
    assert fitted[0].temperature != fitted[1].temperature
    for plain, calibrated, own in zip(before, after, fitted, strict=True):
        assert calibrated.nll < plain.nll
        assert own.num_examples == 300
        assert calibrated.sets[0.8].coverage == pytest.approx(math.ceil(301 * 0.8) / 300)
    assert fitted[0] == calibrate(nested, loader, cut=0.5, coverage=0.8)
    assert "sets" in after[0].to_dict()


def test_fit_leaves_torchs_random_state_alone(nested, loader):
    state = torch.get_rng_state()
    calibrate(nested, loader, cut=0.5)
    assert torch.equal(state, torch.get_rng_state())


def test_calibration_belongs_to_its_cut_and_likelihood(nested, loader):
    fitted = calibrate(nested, loader, cut=0.5)
    with pytest.raises(nl.ArgumentError, match=r"calibration: got one that was fitted at .*: 2"):
        predict(nested, loader[0][0], cut=1.0, calibration=fitted)
    with pytest.raises(nl.ArgumentError, match="fitted with the categorical likelihood"):
        predict(nested, loader[0][0], cut=0.5, likelihood="gaussian", calibration=fitted)
    small = nl.extract(nested, 0.5, uncertainty=True)
    assert predict(small, loader[0][0], calibration=fitted).sets().shape == (64, 3)


def test_segmentation_uses_some_pixels_of_every_image():
    torch.manual_seed(0)
    logits = torch.randn(4, 2, 64, 64)
    y = torch.stack([torch.rand(4, 64, 64) < (3 * (logits[:, 1] - logits[:, 0])).sigmoid() for _ in range(2)], 1).long()
    fitted = calibrate(Fixed(), [(logits, y)])
    assert fitted.temperature == pytest.approx(1 / 3, rel=0.15)
    assert fitted.num_examples == 4
    scores = evaluate(Fixed(), [(logits, y)], calibration=fitted)
    assert scores.sets[0.9].coverage == pytest.approx(0.9, abs=0.02)


def test_record_survives_json(nested, loader):
    fitted = calibrate(nested, loader, cut=0.5, coverage=(0.8, 0.9))
    assert Calibration.from_dict(json.loads(json.dumps(fitted.to_dict(), allow_nan=False))) == fitted
    plain = calibrate(Fixed(), [labelled(30)])
    assert Calibration.from_dict(plain.to_dict()) == plain


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"temperature": -1.0}, nl.RangeError, "temperature: got -1"),
        ({"temperature": "hot"}, nl.DtypeError, "calibration's temperature: got 'hot'"),
        ({"temperature": math.nan}, nl.RangeError, "temperature"),
        ({"thresholds": [0.9]}, nl.DtypeError, "thresholds"),
        ({"thresholds": {"most": 0.5}}, nl.DtypeError, "coverages such as 0.9"),
        ({"thresholds": {"1.5": 0.5}}, nl.RangeError, "coverage: got 1.5"),
        ({"thresholds": {"0.9": None}}, nl.DtypeError, "threshold"),
        ({"num_examples": 0}, nl.RangeError, "num_examples: got 0"),
        ({"num_examples": True}, nl.DtypeError, "num_examples"),
        ({"cut": 0.5}, nl.DtypeError, "calibration's cut: got 0.5"),
        ({"colour": 1}, nl.ArgumentError, r"calibration: got the keys .*'colour'"),
    ],
)
def test_damaged_record_is_refused(change, error, message):
    values = calibrate(Fixed(), [labelled(30)]).to_dict()
    with pytest.raises(error, match=message):
        Calibration.from_dict(values | change)


def test_missing_entries_are_refused():
    with pytest.raises(nl.ArgumentError, match="a dictionary of temperature, thresholds"):
        Calibration.from_dict({"temperature": 1.0})
    with pytest.raises(nl.ArgumentError, match="got list"):
        Calibration.from_dict([1.0])


@pytest.mark.parametrize("coverage", [0.0, 1.0, 90])
def test_coverage_is_a_probability(coverage):
    with pytest.raises(nl.RangeError, match="coverage"):
        calibrate(Fixed(), [labelled(30)], coverage=coverage)


def test_empty_loader_is_refused():
    with pytest.raises(nl.ArgumentError, match="loader: got no example"):
        calibrate(Fixed(), [])
