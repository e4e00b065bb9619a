"""``evaluate`` on small networks and on digits, against scikit-learn on probabilities gathered by hand."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score
from torch import nn

import nestling as nl
from nestling.prediction import calibrate, evaluate, predict
from nestling.prediction.masks import generalised_energy_distance
from nestling.running.layers import VariationalLayer


@pytest.fixture(scope="module")
def digits():
    """Images (n, 64) and labels of digits 0 to 7, and the images of the eights and nines."""
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    return images[labels < 8], labels[labels < 8], images[labels >= 8]


@pytest.fixture(scope="module")
def network(digits):
    """A network that was trained a little, at every width, and is uncertain of its weights."""
    torch.manual_seed(0)
    nested = nl.nest(nl.models.MLP((32,), in_features=64, num_classes=8), digits[0][:2], num_always=1, num_blocks=4)
    for part in nested.modules():
        if isinstance(part, VariationalLayer):
            part.posterior.log_alpha.data.fill_(-1.5)
    optimiser = torch.optim.Adam(nested.module.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(nested(digits[0][:700]), digits[1][:700]).backward()
        optimiser.step()
    return nested.eval()


def batches(*tensors, size=100):
    return list(zip(*(tensor.split(size) for tensor in tensors), strict=True))


def test_scores_are_those_of_scikit_learn(network, digits):
    x, y, foreign = digits[0][700:], digits[1][700:], digits[2]
    torch.manual_seed(4)
    found = evaluate(network, batches(x, y), cut=0.5, samples=3, ood=batches(foreign), seed=None)
    torch.manual_seed(4)
    parts = [predict(network, part, cut=0.5, samples=3) for (part,) in batches(x)]
    others = [predict(network, part, cut=0.5, samples=3) for (part,) in batches(foreign)]
    probs = torch.cat([part.probs for part in parts]).double().numpy()
    probs /= probs.sum(1, keepdims=True)
    assert found.count == len(y)
    assert found.accuracy == pytest.approx(np.mean(probs.argmax(1) == y.numpy()))
    assert found.nll == pytest.approx(log_loss(y, probs), abs=1e-6)
    assert found.brier == pytest.approx(brier_score_loss(y, probs, scale_by_half=False), abs=1e-6)
    assert 0.5 < found.accuracy < 1
    truth = np.repeat([0, 1], [len(y), len(foreign)])
    for name, score in {
        "entropy": lambda p: p.entropy,
        "mutual_information": lambda p: p.epistemic,
        "max_probability": lambda p: 1 - p.confidence,
    }.items():
        values = torch.cat([score(part) for part in parts + others]).numpy()
        assert found.by[name].auroc == pytest.approx(roc_auc_score(truth, values), abs=1e-4)
        assert found.by[name].aupr == pytest.approx(average_precision_score(truth, values), abs=1e-4)
    assert found.auroc == found.by["entropy"].auroc > 0.6
    assert found.aupr == found.by["entropy"].aupr


def test_size_of_batches_does_not_matter(network, digits):
    x, y, _ = digits
    whole, parts = (evaluate(network, batches(x, y, size=size), samples=0).to_dict() for size in (len(x), 17))
    assert whole.pop("reliability")["count"] == parts.pop("reliability")["count"]
    for name, bounds in whole.pop("bounds").items():
        assert parts["bounds"][name] == pytest.approx(bounds, abs=1e-6)
    del parts["bounds"]
    assert parts == pytest.approx(whole, abs=1e-6)


def test_list_of_cuts_gives_what_each_does_alone(network, digits):
    loader = batches(digits[0], digits[1])
    both = evaluate(network, loader, cut=[0.25, {network.groups.free[0].name: 3}], samples=2)
    assert both[0] == evaluate(network, loader, cut=0.25, samples=2)
    assert both[1] == evaluate(network, loader, cut=0.75, samples=2)
    assert both[0].accuracy < both[1].accuracy
    assert evaluate(network, loader, cut=[]) == []


def test_torchs_random_state_is_left_alone(network, digits):
    loader = batches(*digits[:2])
    state = torch.get_rng_state()
    first, second = evaluate(network, loader), evaluate(network, loader)
    assert first == second
    assert torch.equal(state, torch.get_rng_state())
    assert evaluate(network, loader, seed=None) != first


@pytest.mark.parametrize("score", [evaluate, calibrate])
def test_random_numbers_that_others_draw_meanwhile_are_not_drawn_again(score, network, digits):
    drawn = []

    class Busy(list):
        def __iter__(self):
            for batch in super().__iter__():
                with ThreadPoolExecutor(1) as another:
                    drawn.append(another.submit(torch.rand, 1).result())
                yield batch

    torch.manual_seed(3)
    expected = [torch.rand(1) for _ in range(4)]
    torch.manual_seed(3)
    score(network, Busy(batches(*digits[:2])[:3]), samples=2)
    assert [*drawn, torch.rand(1)] == expected


def test_scores_are_plain_json(network, digits):
    x, y, foreign = digits
    scores = evaluate(network, batches(x, y), cut=1.0, samples=1, ood=[foreign[:50], foreign[50:]])
    again = json.loads(json.dumps(scores.to_dict(), allow_nan=False))
    assert again["accuracy"] == scores.accuracy
    assert set(again) == set("count nll ece auroc aupr base_rate by accuracy brier bounds reliability".split())
    assert set(again["by"]) == {"entropy", "mutual_information", "max_probability"}
    assert len(again["reliability"]["count"]) == 15
    assert evaluate(network, batches(x, y)).auroc is None


class Fixed(nn.Module):
    """Gives its inputs as outputs, so that they can be chosen freely."""

    def forward(self, x):
        return x


def test_calibration_error_and_bins():
    logits = torch.tensor([[0.7, 0.3], [0.7, 0.3], [0.5, 0.5]]).log()
    scores = evaluate(Fixed(), [(logits, torch.tensor([0, 1, 1]))], num_bins=5)
    assert scores.ece == pytest.approx((2 * 0.2 + 0.5) / 3)
    assert scores.reliability.count == (0, 0, 1, 2, 0)


@pytest.mark.parametrize("raters", [None, 3])
def test_segmentation(raters):
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = nl.nest(
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1)),
        torch.randn(1, 1, 4, 4),
        weights="gaussian",
        sampling="each",
    )
    for part in network.modules():
        if isinstance(part, VariationalLayer):
            part.posterior.log_alpha.data.fill_(0.5)
    x = torch.randn(5, 1, 4, 4, generator=generator)
    shape = (5, 4, 4) if raters is None else (5, raters, 4, 4)
    y = torch.randint(2, shape, generator=generator)
    torch.manual_seed(1)
    found = evaluate(network, batches(x, y, size=2), samples=4, seed=None, ood=batches(3 * x, size=2))
    torch.manual_seed(1)
    parts = [predict(network, part, samples=4, keep_samples=True) for (part,) in batches(x, size=2)]
    rated = y if raters else y.unsqueeze(1)
    probs = torch.cat([part.probs for part in parts]).double()
    foreground = probs[:, 1:].expand(-1, rated.shape[1], -1, -1).flatten().numpy()
    assert found.nll == pytest.approx(log_loss(rated.flatten(), foreground), abs=1e-6)
    assert found.brier == pytest.approx(2 * brier_score_loss(rated.flatten(), foreground), abs=1e-6)
    assert found.accuracy == pytest.approx(np.mean((foreground > 0.5) == rated.flatten().numpy()))
    assert sum(found.reliability.count) == y.numel()
    drawn = torch.cat([part.samples for part in parts], 1).argmax(2).flatten(2).transpose(0, 1)
    assert found.ged == pytest.approx(generalised_energy_distance(drawn, rated.flatten(2), 2).mean().item())
    best = probs.argmax(1, keepdim=True)
    both, either = (best & rated).sum((2, 3)).double(), (best | rated).sum((2, 3))
    assert found.iou == pytest.approx((both / either).mean().item())
    assert found.dice == pytest.approx((2 * both / (both + either)).mean().item())
    assert 0 <= found.auroc <= 1
    assert {"ged", "iou", "dice"} <= set(found.to_dict())


def test_one_logit_scores_as_two_classes():
    torch.manual_seed(0)
    logits, y = torch.randn(6, 1, 4, 4), torch.randint(2, (6, 3, 4, 4))
    one = evaluate(Fixed(), [(logits, y)], likelihood="bernoulli")
    two = evaluate(Fixed(), [(torch.cat((torch.zeros_like(logits), logits), 1), y)])
    assert one == two


def test_regression():
    torch.manual_seed(0)
    output = torch.randn(3000, 2)
    noise = torch.randn(3000, 1) * (output[:, 1:] / 2).exp()
    y = output[:, :1] + noise
    found = evaluate(Fixed(), batches(output, y), likelihood="heteroscedastic_gaussian")
    density = stats.norm(output[:, :1].numpy(), np.exp(output[:, 1:].numpy() / 2))
    assert found.nll == pytest.approx(-density.logpdf(y.numpy()).mean(), abs=1e-3)
    assert found.rmse == pytest.approx(noise.square().mean().sqrt().item(), rel=1e-5)
    assert found.ece < 0.02
    assert len(found.intervals) == 14
    for nominal, inside in found.intervals.items():
        low, high = density.interval(nominal)
        assert inside == pytest.approx(np.mean((low <= y.numpy()) & (y.numpy() <= high)), abs=2e-3)
    overconfident = evaluate(Fixed(), batches(output[:, :1], y), likelihood=nl.prediction.Gaussian(std=0.1))
    assert overconfident.ece > 0.3
    json.dumps(found.to_dict(), allow_nan=False)


def test_regression_out_of_distribution(digits):
    x = digits[0][:200]
    network = nl.nest(nn.Sequential(nn.Linear(64, 1)), x[:2], where="all")
    scores = evaluate(network, [(x, x[:, :1])], likelihood="gaussian", ood=[5 * x])
    assert set(scores.by) == {"variance", "epistemic_variance"}
    assert scores.auroc > 0.9


GOOD = [(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))]


@pytest.mark.parametrize(
    ("loader", "options", "error", "message"),
    [
        ([], {}, nl.ArgumentError, "loader: got no example"),
        (GOOD, {"ood": []}, nl.ArgumentError, "ood: got no batch"),
        ([torch.zeros(4, 3)], {}, nl.DtypeError, r"batch: got a Tensor.*a pair"),
        ([(torch.zeros(4, 3), [0, 1, 2, 0])], {}, nl.DtypeError, "targets as a tensor"),
        ([(torch.zeros(4, 3), torch.full((4,), 3))], {}, nl.RangeError, "labels from 3 to 3"),
        ([(torch.zeros(4, 3), torch.zeros(5).long())], {}, nl.ShapeError, r"target: got shape \(5,\)"),
        ([*GOOD, (torch.full((4, 3), math.nan), GOOD[0][1])], {}, nl.NonFiniteError, "output of batch 1: got 12 of 12"),
        (GOOD, {"num_bins": 0}, nl.RangeError, "num_bins: got 0"),
        (GOOD, {"samples": -2}, nl.RangeError, "samples: got -2"),
        (GOOD, {"cut": 0.5}, nl.ArgumentError, "cut: got 0.5, but it must be None"),
        (GOOD, {"calibration": [None]}, nl.ArgumentError, "calibration: got a list of 1"),
        (iter(GOOD), {"cut": [0.5, 1.0]}, nl.DtypeError, "loader: got an iterator for 2 cuts"),
        (GOOD, {"cut": [0.5, 1.0], "calibration": [None]}, nl.ArgumentError, "a list of 2, one for each cut"),
    ],
)
def test_what_makes_no_sense_is_refused(loader, options, error, message):
    with pytest.raises(error, match=message):
        evaluate(Fixed(), loader, **options)
