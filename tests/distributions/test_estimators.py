"""Gradient estimators of an expected loss against its exact gradient, on average over draws and by enumerating them."""

import itertools
import math

import pytest
import torch

from nestling.distributions import (
    BernoulliChain,
    Downhill,
    Geometric,
    Uniform,
    expected_loss,
    leave_one_out,
    with_baseline,
)
from nestling.errors import ArgumentError, DtypeError, RangeError, ShapeError

F64 = torch.float64


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


LOGITS = [1.2, -0.4, 0.8]
WEIGHTS = [0.3, -1.0, 2.0, 0.7]


def wavy(masks: torch.Tensor) -> torch.Tensor:
    """A loss that is far from linear in the mask."""
    score = masks @ torch.tensor(WEIGHTS, dtype=masks.dtype)
    return torch.sin(3 * score) + score.square()


def width_table(logits: list[float]) -> list[float]:
    """Probabilities of the widths, multiplied out by hand."""
    keep = [1 / (1 + math.exp(-x)) for x in logits]
    return [math.prod(keep[:j]) * (1 - keep[j] if j < len(keep) else 1) for j in range(len(keep) + 1)]


def hand_loss(width: int) -> float:
    score = sum(WEIGHTS[:width])
    return math.sin(3 * score) + score**2


def exact_value_and_gradient(logits: list[float]) -> tuple[float, list[float]]:
    """E[loss] and its gradient: d log p(width j) / d logit_k = [k < j](1 - mu_k) - [k = j] mu_k, by hand."""
    probs = width_table(logits)
    keep = [1 / (1 + math.exp(-x)) for x in logits]
    value = sum(p * hand_loss(j + 1) for j, p in enumerate(probs))
    gradient = [0.0] * len(logits)
    for j, p in enumerate(probs):
        for k in range(len(logits)):
            score = (1 - keep[k]) if k < j else (-keep[k] if k == j else 0.0)
            gradient[k] += p * hand_loss(j + 1) * score
    return value, gradient


VALUE, GRADIENT = exact_value_and_gradient(LOGITS)


def learned_order(temperature: float = 0.5) -> Downhill:
    return Downhill(torch.nn.Parameter(torch.tensor(LOGITS, dtype=F64)), temperature=temperature)


def test_enumeration_is_exact():
    order = learned_order()
    value = expected_loss(order, wavy, estimator="enumerate")
    value.backward()
    assert value.item() == pytest.approx(VALUE, abs=1e-13)
    assert order.logits.grad.tolist() == pytest.approx(GRADIENT, abs=1e-13)


@pytest.mark.parametrize("num_samples", [2, 3])
def test_leave_one_out_is_exact_in_expectation_over_every_set_of_draws(num_samples):
    """All 4^n draws with their probabilities: the expected estimate and gradient are the true ones, to rounding."""
    order = learned_order()
    probs = width_table(LOGITS)
    value, gradient = 0.0, torch.zeros(3, dtype=F64)
    for draws in itertools.product(range(1, 5), repeat=num_samples):
        weight = math.prod(probs[w - 1] for w in draws)
        widths = torch.tensor(draws)
        estimate = leave_one_out(order.log_prob(widths), wavy(order.masks(widths)))
        (grad,) = torch.autograd.grad(estimate, order.logits)
        value += weight * estimate.item()
        gradient += weight * grad
    assert value == pytest.approx(VALUE, abs=1e-9)
    assert gradient.tolist() == pytest.approx(GRADIENT, abs=1e-9)


@pytest.mark.parametrize("baseline", [0.0, 1.7, -40.0])
def test_any_constant_baseline_is_exact_in_expectation(baseline):
    order = learned_order()
    gradient = torch.zeros(3, dtype=F64)
    for width, prob in zip(range(1, 5), width_table(LOGITS), strict=True):
        widths = torch.tensor([width])
        estimate = with_baseline(order.log_prob(widths), wavy(order.masks(widths)), torch.tensor(baseline, dtype=F64))
        assert estimate.item() == pytest.approx(hand_loss(width), abs=1e-12)
        gradient += prob * torch.autograd.grad(estimate, order.logits)[0]
    assert gradient.tolist() == pytest.approx(GRADIENT, abs=1e-9)


def test_a_baseline_that_sees_its_own_draw_is_biased():
    """Why the mean over *all* draws must not be the baseline: it shrinks the gradient by (n - 1) / n."""
    order = learned_order()
    gradient = torch.zeros(3, dtype=F64)
    for draws in itertools.product(range(1, 5), repeat=2):
        weight = math.prod(width_table(LOGITS)[w - 1] for w in draws)
        losses = wavy(order.masks(torch.tensor(draws)))
        estimate = with_baseline(order.log_prob(torch.tensor(draws)), losses, losses.mean())
        gradient += weight * torch.autograd.grad(estimate, order.logits)[0]
    assert gradient.tolist() == pytest.approx([g / 2 for g in GRADIENT], abs=1e-9)


def test_the_loss_may_have_a_gradient_of_its_own():
    """A parameter inside the loss gets its plain expected gradient beside the score function of the order."""
    order, scale = learned_order(), torch.nn.Parameter(torch.tensor(1.5, dtype=F64))
    probs = width_table(LOGITS)
    total = torch.zeros((), dtype=F64)
    for draws in itertools.product(range(1, 5), repeat=2):
        widths = torch.tensor(draws)
        estimate = leave_one_out(order.log_prob(widths), scale.square() * wavy(order.masks(widths)))
        total = total + math.prod(probs[w - 1] for w in draws) * estimate
    total.backward()
    assert scale.grad.item() == pytest.approx(2 * 1.5 * VALUE, abs=1e-9)
    assert order.logits.grad.tolist() == pytest.approx([1.5**2 * g for g in GRADIENT], abs=1e-9)


def test_two_orders_drawn_together_add_their_log_probabilities():
    """A loss of two widths at once: every pair of pairs of draws, enumerated (2 x 2 states, 16 sets of draws)."""
    first, second = (torch.nn.Parameter(torch.tensor([x], dtype=F64)) for x in (0.7, -0.9))
    orders = Downhill(first), Downhill(second)

    def loss(a, b):
        return (a.double() * b.double() - 2.5).square()

    exact = sum(
        (orders[0].log_prob(torch.tensor(a)) + orders[1].log_prob(torch.tensor(b))).exp()
        * loss(torch.tensor(a), torch.tensor(b))
        for a, b in itertools.product((1, 2), repeat=2)
    )
    expected = torch.autograd.grad(exact, (first, second))
    found = [torch.zeros(1, dtype=F64), torch.zeros(1, dtype=F64)]
    for a1, b1, a2, b2 in itertools.product((1, 2), repeat=4):
        a, b = torch.tensor([a1, a2]), torch.tensor([b1, b2])
        joint = orders[0].log_prob(a) + orders[1].log_prob(b)
        grads = torch.autograd.grad(leave_one_out(joint, loss(a, b)), (first, second), retain_graph=True)
        for total, grad in zip(found, grads, strict=True):
            total += joint.sum().exp().item() * grad
    assert [g.item() for g in found] == pytest.approx([g.item() for g in expected], abs=1e-9)


@pytest.mark.parametrize(("num_samples", "repeats"), [(2, 3000), (8, 1500)])
def test_leave_one_out_draws_average_to_the_exact_gradient(num_samples, repeats):
    """Within 4 standard errors, estimated from the repeats themselves, in value and in each gradient."""
    order, generator = learned_order(), seeded(21)
    found = []
    for _ in range(repeats):
        estimate = expected_loss(order, wavy, num_samples=num_samples, generator=generator)
        (grad,) = torch.autograd.grad(estimate, order.logits)
        found.append([estimate.item(), *grad.tolist()])
    found = torch.tensor(found, dtype=F64)
    standard_error = found.std(0) / math.sqrt(repeats)
    assert ((found.mean(0) - torch.tensor([VALUE, *GRADIENT], dtype=F64)).abs() < 4 * standard_error).all()


def test_a_running_baseline_averages_to_the_exact_gradient_with_one_draw_a_step():
    """Within 4 standard errors of independent blocks, since the baseline ties neighbouring steps together."""
    order, generator = learned_order(), seeded(22)
    running, grads = torch.zeros((), dtype=F64), []
    for _ in range(2000):
        widths = order.sample((1,), generator)
        losses = wavy(order.masks(widths))
        grads.append(torch.autograd.grad(with_baseline(order.log_prob(widths), losses, running), order.logits)[0])
        running = 0.95 * running + 0.05 * losses.mean()
    blocks = torch.stack(grads).reshape(40, 50, 3).mean(1)
    standard_error = blocks.std(0) / math.sqrt(40)
    assert ((blocks.mean(0) - torch.tensor(GRADIENT, dtype=F64)).abs() < 4 * standard_error).all()


@pytest.mark.parametrize("num_samples", [2, 5])
def test_leave_one_out_of_a_constant_loss_has_no_gradient_at_all(num_samples):
    """The baseline is the mean of the others exactly, so a loss that no width changes cancels in every draw."""
    order = learned_order()
    value = expected_loss(order, lambda m: 0 * m.sum(-1) + 7.0, num_samples=num_samples, generator=seeded(26))
    value.backward()
    assert value.item() == 7
    assert order.logits.grad.tolist() == [0.0] * 3


def test_leave_one_out_varies_less_than_no_baseline():
    order, generator = learned_order(), seeded(23)
    spreads = []
    for baseline in (None, 0.0):
        grads = []
        for _ in range(500):
            widths = order.sample((4,), generator)
            losses, log_probs = wavy(order.masks(widths)) + 10, order.log_prob(widths)
            estimate = leave_one_out(log_probs, losses) if baseline is None else with_baseline(log_probs, losses, 0.0)
            grads.append(torch.autograd.grad(estimate, order.logits)[0])
        spreads.append(torch.stack(grads).var(0).sum())
    assert spreads[0] < 0.2 * spreads[1]


@pytest.mark.parametrize("estimator", ["straight_through", "relaxed"])
def test_relaxed_estimators_run_and_converge_for_a_linear_loss_in_the_cold(estimator):
    """Both are biased in general; for a linear loss and a cold mask the relaxed value is the expected one (5 s.e.)."""
    order = learned_order(temperature=0.05)
    value = expected_loss(order, lambda m: m.sum(-1), estimator=estimator, num_samples=20_000, generator=seeded(24))
    value.backward()
    assert order.logits.grad.isfinite().all()
    assert order.logits.grad.abs().max() > 0
    probs, widths = order.log_probs().exp(), order.widths().double()
    std = (probs @ widths.square() - (probs @ widths).square()).sqrt().item()
    # Blur at temperature 0.05 moves a mean by less than 0.05^2 pi^2 / 6 times the curvature, 0.005 in all.
    assert value.item() == pytest.approx((probs @ widths).item(), abs=5 * std / math.sqrt(20_000) + 0.005)


def test_straight_through_is_biased_for_a_loss_that_is_not_linear():
    """The reason why it is not the default: off by more than 20 standard errors here."""
    order = learned_order(temperature=0.5)
    grads = []
    for seed in range(50):
        value = expected_loss(order, wavy, estimator="straight_through", num_samples=400, generator=seeded(seed))
        grads.append(torch.autograd.grad(value, order.logits)[0])
    grads = torch.stack(grads)
    off = (grads.mean(0) - torch.tensor(GRADIENT, dtype=F64)).abs() / (grads.std(0) / math.sqrt(50))
    assert off.max() > 20


@pytest.mark.parametrize(
    "order", [Uniform(4, dtype=F64), Geometric(4, 0.6, dtype=F64), BernoulliChain(torch.full((3,), 0.6, dtype=F64))]
)
def test_every_order_can_be_estimated_without_relaxation(order):
    exact = sum(p * hand_loss(w + 1) for w, p in enumerate(order.log_probs().exp().tolist()))
    assert expected_loss(order, wavy, estimator="enumerate").item() == pytest.approx(exact, abs=1e-12)
    drawn = expected_loss(order, wavy, num_samples=20_000, generator=seeded(25))
    assert drawn.item() == pytest.approx(exact, abs=5 * 4 / math.sqrt(20_000))  # losses lie in [-1, 7]: std below 4
    with pytest.raises(ArgumentError, match=rf"order: got {type(order).__name__}.*Downhill.*leave_one_out"):
        expected_loss(order, wavy, estimator="relaxed")


def test_errors_name_what_is_wrong():
    order = learned_order()
    with pytest.raises(RangeError, match=r"1 draw.*at least 2 draws.*with_baseline"):
        expected_loss(order, wavy, num_samples=1)
    with pytest.raises(RangeError, match=r"num_samples: got 0.*at least 1"):
        expected_loss(order, wavy, num_samples=0, estimator="relaxed")
    with pytest.raises(DtypeError, match=r"num_samples: got 2\.5.*whole number"):
        expected_loss(order, wavy, num_samples=2.5)
    with pytest.raises(ArgumentError, match=r"'exact'.*'leave_one_out', 'enumerate', 'straight_through' or 'relaxed'"):
        expected_loss(order, wavy, estimator="exact")


@pytest.mark.parametrize("estimator", ["leave_one_out", "enumerate", "straight_through", "relaxed"])
@pytest.mark.parametrize("loss", [lambda m: m.sum(), lambda m: m.sum(-1, keepdim=True)], ids=["one number", "a column"])
def test_a_loss_without_one_value_per_mask_is_refused(loss, estimator):
    """Unchecked, a column of losses broadcasts to a square whose leave-one-out gradient is exactly zero, in silence."""
    with pytest.raises(ShapeError, match=r"loss: got losses of shape .* one loss per mask"):
        expected_loss(learned_order(), loss, estimator=estimator)


def test_losses_and_log_probs_must_pair_up():
    for losses in (torch.zeros(3, 1), torch.zeros(2)):
        with pytest.raises(ShapeError, match=r"losses: got shape .* for log_probs of shape \(3,\)"):
            leave_one_out(torch.zeros(3), losses)
    with pytest.raises(ShapeError, match="baseline broadcastable to the losses"):
        with_baseline(torch.zeros(3), torch.zeros(3), torch.zeros(3, 1))
    with pytest.raises(RangeError, match="at least 2 draws"):
        leave_one_out(torch.tensor(0.0), torch.tensor(0.0))
