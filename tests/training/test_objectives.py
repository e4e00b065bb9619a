"""The other methods' objectives against networks that are cut by hand, one after the other, with torch's own losses."""

import itertools
import math
from collections import Counter

import pytest
import torch
from scipy import stats
from small_networks import QUICK, examples, images, labels, nested_mlp, nested_norms, normal, same_tensors
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import nestling as nl
from nestling.distributions import log_uniform_kl
from nestling.errors import ArgumentError
from nestling.prediction.likelihoods import likelihood_named
from nestling.training import Recipe, train
from nestling.training.loop import Loop
from nestling.training.objectives import baseline_terms, soft_cross_entropy
from nestling.training.widths import draw_fraction

N = 50
X, Y = normal(8, 1, 4, 4, dtype=torch.float64), labels(3, 8)
UNITS = ({1: 2, 2: 4, 3: 6}, {1: 2, 2: 4, 3: 5})
"""Channels of the first and of the second convolution at each width."""
OTHERS = ("us_net", "slimmable")


def terms_of(nested, batch, seed=0, kappa=0.0, likelihood="categorical", **changes):
    generator = torch.Generator().manual_seed(seed)
    model = likelihood_named(likelihood)
    recipe = Recipe(**changes)
    return baseline_terms(nested, batch, recipe, dataset_size=N, kappa=kappa, likelihood=model, generator=generator)


def hand_cut(nested, widths):
    """A network of its own with the first channels of each layer, and where in the whole one its numbers are from."""
    a, b = (units[width] for units, width in zip(UNITS, widths, strict=True))
    small = nn.Sequential(
        *(nn.Conv2d(1, a, 3, padding=1), nn.BatchNorm2d(a), nn.ReLU()),
        *(nn.Conv2d(a, b, 3), nn.BatchNorm2d(b), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(b * 4, 3)),
    ).double()
    where = {
        **dict.fromkeys(("0.weight", "0.bias", "1.weight", "1.bias"), (slice(a),)),
        **dict.fromkeys(("3.bias", "4.weight", "4.bias"), (slice(b),)),
        "3.weight": (slice(b), slice(a)),
        "7.weight": (slice(None), slice(4 * b)),
        "7.bias": (slice(None),),
    }
    whole = dict(nested.module.named_parameters())
    with torch.no_grad():
        for name, own in small.named_parameters():
            own.copy_(whole[name][where[name]])
    return small, where


def gradients_by_hand(nested, cuts, loss_of):
    """Run one hand-cut network after the other and add their gradients up where they belong."""
    sums = {name: torch.zeros_like(own) for name, own in nested.module.named_parameters()}
    losses, teacher = [], None
    for cut in cuts:
        small, where = hand_cut(nested, cut.as_dict().values())
        output = small.train()(X)
        loss = loss_of(output, teacher)
        teacher = output.detach() if teacher is None else teacher
        loss.backward()
        losses.append(float(loss.detach()))
        for name, own in small.named_parameters():
            sums[name][where[name]] += own.grad
    return sums, losses


def us_net_loss(output, teacher):
    return functional.cross_entropy(output, Y if teacher is None else teacher.softmax(1))


def slimmable_loss(output, _teacher):
    return functional.cross_entropy(output, Y)


@pytest.mark.parametrize(("objective", "loss_of"), [("us_net", us_net_loss), ("slimmable", slimmable_loss)])
def test_gradient_is_the_mean_of_those_of_networks_cut_by_hand(objective, loss_of):
    nested = nested_norms(weights=None, order="uniform").double().train()
    terms = terms_of(nested, (X, Y), objective=objective, draws=3, cuts=(1 / 3, 2 / 3, 1.0))
    widths = [tuple(cut.as_dict().values()) for cut in terms.cuts]
    if objective == "us_net":
        assert len(widths) == 5
        assert widths[:2] == [(3, 3), (1, 1)]
        assert all(first == second for first, second in widths[2:])
    else:
        assert widths == [(1, 1), (2, 2), (3, 3)]
    sums, losses = gradients_by_hand(nested, terms.cuts, loss_of)
    torch.testing.assert_close(float(terms.loss.detach()), sum(losses) / len(widths))
    terms.loss.backward()
    for name, own in nested.module.named_parameters():
        torch.testing.assert_close(own.grad, sums[name] / len(widths))
    assert float(terms.order_kl) == float(terms.weight_kl) == 0.0
    nlls = [functional.cross_entropy(hand_cut(nested, pair)[0].train()(X), Y) for pair in widths]
    torch.testing.assert_close(terms.nll, sum(nlls).detach() / len(widths))


@pytest.mark.parametrize("shape", [(6, 4), (2, 4, 3, 5)], ids=["examples", "positions"])
def test_soft_cross_entropy_is_the_divergence_and_the_teachers_entropy(shape):
    student, teacher = normal(*shape, dtype=torch.float64), normal(*shape, seed=1, dtype=torch.float64)
    student.requires_grad_()
    teacher.requires_grad_()
    found = soft_cross_entropy(student, teacher)
    number = student.numel() / 4
    entropy = torch.distributions.Categorical(logits=teacher.movedim(1, -1)).entropy().mean()
    divergence = functional.kl_div(student.log_softmax(1), teacher.log_softmax(1), log_target=True, reduction="sum")
    torch.testing.assert_close(found, entropy + divergence / number)
    found.backward()
    assert teacher.grad is None
    torch.testing.assert_close(student.grad, (student.softmax(1) - teacher.softmax(1)).detach() / number)


def test_who_says_what_the_teacher_does_learns_nothing_from_it():
    logits = normal(5, 3, dtype=torch.float64)
    student = (logits + 2.0).requires_grad_()
    (gradient,) = torch.autograd.grad(soft_cross_entropy(student, logits), student)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))


def test_soft_cross_entropy_of_half_precision_and_far_logits_is_finite():
    student, teacher = torch.tensor([[3e4, 0.0, -3e4]]).bfloat16(), torch.tensor([[-3e4, 0.0, 3e4]]).bfloat16()
    found = soft_cross_entropy(student, teacher)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(6e4, rel=1e-2)


@pytest.mark.parametrize("objective", OTHERS)
def test_weights_with_a_posterior_pay_for_what_each_width_keeps(objective):
    nested = nested_mlp().eval()
    terms = terms_of(nested, (normal(8, 4), Y), objective=objective, kappa=0.3, cuts=(1 / 3, 1.0))
    free = terms_of(nested, (normal(8, 4), Y), objective=objective, cuts=(1 / 3, 1.0))
    log_alphas = [nested.module.layers[number].posterior.log_alpha.detach() for number in (1, 3, 5)]
    totals = []
    for cut in terms.cuts:
        a, b = (units[width] for units, width in zip(UNITS, cut.as_dict().values(), strict=True))
        kept = (log_alphas[0][:a], log_alphas[1][:b, :a], log_alphas[2][:, :b])
        totals.append(sum(log_uniform_kl(own).sum() for own in kept))
    torch.testing.assert_close(terms.weight_kl, sum(totals) / len(totals))
    torch.testing.assert_close((terms.loss - free.loss).detach(), 0.3 / N * terms.weight_kl, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("objective", OTHERS)
def test_processes_that_draw_the_same_widths_share_the_gradient(objective):
    nested, x = nested_mlp(weights=None, order="uniform").double().train(), normal(8, 4, dtype=torch.float64)

    def gradient(rows, seed=5):
        terms = terms_of(nested, (x[rows], Y[rows]), seed, objective=objective)
        return terms.cuts, torch.autograd.grad(terms.loss, list(nested.parameters()))

    cuts, whole = gradient(slice(8))
    halves = [gradient(slice(4)), gradient(slice(4, 8))]
    assert [own for own, _ in halves] == [cuts, cuts]
    for own, first, second in zip(whole, halves[0][1], halves[1][1], strict=True):
        torch.testing.assert_close(own, (first + second) / 2)
    others = {gradient(slice(4), seed)[0] for seed in range(8)}
    assert (len(others) > 1) == (objective == "us_net")


def test_one_fraction_for_all_groups_is_uniform():
    """Groups of 8 and of 4 blocks, 2 of them always kept: from a quarter to all, and from a half to all."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    nested = nl.nest(module, normal(2, 3), weights=None, num_blocks=8, num_always=2)
    first, second = nested.groups.free
    generator, state = torch.Generator().manual_seed(0), torch.get_rng_state()
    draws = [draw_fraction(nested, generator) for _ in range(2000)]
    assert torch.equal(torch.get_rng_state(), state)
    low = min(group.num_always / group.num_blocks for group in (first, second))
    for group in (first, second):
        found = Counter(cut[group.name] for cut in draws)
        ends = [max(low, (width + 0.5) / group.num_blocks) for width in range(group.num_always, group.num_blocks)]
        edges = [low, *ends, 1.0]
        chances = [(high - bottom) / (1 - low) for bottom, high in itertools.pairwise(edges)]
        assert sum(chances) == pytest.approx(1)
        observed = [found[width] for width in range(group.num_always, group.num_blocks + 1)]
        assert sum(observed) == len(draws)
        assert stats.chisquare(observed, [len(draws) * chance for chance in chances]).pvalue > 1e-4
    pairs = {tuple(cut.as_dict().values()) for cut in draws}
    assert pairs == {(2, 2), (3, 2), (4, 2), (5, 2), (5, 3), (6, 3), (7, 3), (7, 4), (8, 4)}


def test_widths_that_round_to_the_same_are_trained_once():
    terms = terms_of(nested_mlp(weights=None), (normal(8, 4), Y), objective="slimmable", cuts=(0.3, 1 / 3, 1.0, 1.0))
    assert [tuple(cut.as_dict().values()) for cut in terms.cuts] == [(1, 1), (3, 3)]


@pytest.mark.parametrize("objective", OTHERS)
def test_a_network_without_groups(objective):
    nested, x = nl.nest(nn.Linear(4, 3).double(), normal(2, 4).double(), weights=None), normal(8, 4).double()
    terms = terms_of(nested, (x, Y), objective=objective)
    assert set(terms.cuts) == {nl.Cut(())}
    torch.testing.assert_close(terms.nll, functional.cross_entropy(nested.module(x), Y).detach())


def test_positions_are_distilled_too():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 1))
    nested = nl.nest(module, normal(2, 1, 5, 4), num_blocks=3, num_always=1, weights=None)
    terms = terms_of(nested, (normal(6, 1, 5, 4), labels(3, 6, 5, 4)), objective="us_net", draws=1)
    outputs = []
    for cut in terms.cuts:
        with nested.at(cut):
            outputs.append(nested(normal(6, 1, 5, 4)))
    by_hand = [functional.cross_entropy(outputs[0], labels(3, 6, 5, 4))]
    by_hand += [functional.cross_entropy(output, outputs[0].softmax(1)) for output in outputs[1:]]
    torch.testing.assert_close(terms.loss, sum(by_hand) / 3)


def run(objective, place=None, recipe=QUICK):
    chosen = recipe.but(objective=objective, recalibration_batches=2)
    return train(nested_norms(weights=None), (images(), images(seed=3)), chosen, out=place, quiet=True)


@pytest.mark.parametrize("objective", OTHERS)
def test_a_run_that_was_stopped_goes_on_to_the_same_weights(monkeypatch, tmp_path, objective):
    expected = run(objective)
    real, calls = Loop._step, []

    def interrupted(self, batch):
        calls.append(None)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(objective, tmp_path)
    found = run(objective, tmp_path)
    assert same_tensors(found.nested.state_dict(), expected.nested.state_dict())
    assert [line["loss"] for line in found.log] == [line["loss"] for line in expected.log]


@pytest.mark.parametrize("objective", OTHERS)
def test_training_learns_at_every_width_and_leaves_the_orders_alone(objective):
    nested = nested_mlp(weights=None)
    before = {name: order.logits.detach().clone() for name, order in nested.orders.items()}
    recipe = Recipe(epochs=12, batch_size=16, lr=0.02, samples=1, cuts=(1 / 3, 1.0), objective=objective)
    found = train(nested, (examples(64), examples(seed=3)), recipe, quiet=True)
    first, last = found.log[0]["validation"], found.log[-1]["validation"]
    assert all(last[cut]["nll"] < first[cut]["nll"] for cut in first)
    assert all(torch.equal(order.logits, before[name]) for name, order in nested.orders.items())
    assert math.isfinite(found.log[-1]["loss"])


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian", "heteroscedastic_gaussian"])
def test_probabilities_of_classes_are_needed_to_learn_from_them(tmp_path, likelihood):
    data, recipe = (examples(), examples(seed=3)), QUICK.but(objective="us_net")
    with pytest.raises(ArgumentError, match="us_net") as caught:
        train(nested_mlp(), data, recipe, out=tmp_path, likelihood=likelihood, quiet=True)
    assert caught.value.name == "objective"
    assert not any(tmp_path.iterdir())


def test_slimmable_suits_every_likelihood():
    data = TensorDataset(normal(16, 4), normal(16, 3, seed=1))
    found = train(nested_mlp(), (data, data), QUICK.but(objective="slimmable"), likelihood="gaussian", quiet=True)
    assert math.isfinite(found.log[-1]["loss"])


@pytest.mark.parametrize("objective", ["", "usnet", None, 1])
def test_an_unknown_objective_is_refused(objective):
    with pytest.raises(ArgumentError) as caught:
        Recipe(objective=objective)
    assert caught.value.name == "objective"
