"""Objectives that orders learn by, and their gradients, against sums over all cuts, for one network by hand."""

import itertools
import math

import numpy as np
import pytest
import torch
from small_networks import BOUND, labels, nested_mlp, normal
from torch import nn
from torch.nn.functional import cross_entropy

import nestling as nl
from nestling.distributions import BernoulliChain, kl
from nestling.errors import ArgumentError
from nestling.training import Recipe, objectives
from nestling.training import elbo as step_loss
from nestling.training import elbo_terms as step_terms
from nestling.training.terms import WEIGHT_KLS, order_divergence

N = 50
PRIOR = 0.9
BLOCKS = {"layers.1": (2, 2, 2), "layers.3": (2, 2, 1)}
WIDTHS = (1, 2, 3)
X, Y = normal(8, 4, dtype=torch.float64), labels(3, 8)


def elbo(nested, batch, **options):
    return step_loss(nested, batch, **BOUND | options)


def elbo_terms(nested, batch, **options):
    return step_terms(nested, batch, **BOUND | options)


def network(weights="gaussian", **options):
    nested = nested_mlp(weights=weights, **options).double()
    for seed, order in enumerate(nested.orders.values()):
        if isinstance(order, nl.distributions.Downhill):
            order.logits.data = normal(2, seed=10 + seed, dtype=torch.float64)
    for seed, (name, parameter) in enumerate(nested.named_parameters()):
        if name.endswith("log_alpha"):
            parameter.data = 2 * normal(*parameter.shape, seed=20 + seed, dtype=torch.float64) - 2
    return nested


class ByHand:
    """Everything about ``network()`` from its parameters alone."""

    def __init__(self, nested):
        own = dict(nested.named_parameters())
        weight = "posterior.mean" if "module.layers.1.posterior.mean" in own else "weight"
        self.weights = [own[f"module.layers.{n}.{weight}"] for n in (1, 3, 5)]
        self.biases = [own[f"module.layers.{n}.bias"] for n in (1, 3, 5)]
        self.log_alphas = [own.get(f"module.layers.{n}.posterior.log_alpha") for n in (1, 3, 5)]
        self.logits = [order.logits for order in nested.orders.values()]

    def probs(self):
        """P(width = 1, 2, 3) of both groups."""
        keep = [torch.sigmoid(own) for own in self.logits]
        return [torch.stack([1 - a, a * (1 - b), a * b]) for a, b in keep]

    def keep_probs(self):
        keep = [torch.sigmoid(own) for own in self.logits]
        return [torch.stack([torch.ones_like(a), a, a * b]) for a, b in keep]

    def output(self, x, masks):
        for number, mask in enumerate(masks):
            x = (x @ self.weights[number].T + self.biases[number]).relu()
            x = x * by_unit(mask, number)
        return x @ self.weights[2].T + self.biases[2]

    def weight_kl(self, divergence, masks):
        """Sum over weights of their divergence, times the entries of the masks of their row and their column."""
        rows = [by_unit(masks[0], 0), by_unit(masks[1], 1), torch.ones(3)]
        columns = [torch.ones(4), by_unit(masks[0], 0), by_unit(masks[1], 1)]
        terms = zip(self.log_alphas, rows, columns, strict=True)
        return sum((divergence(own) * torch.outer(row, column)).sum() for own, row, column in terms)

    def order_kl(self):
        prior = torch.tensor([1 - PRIOR, PRIOR * (1 - PRIOR), PRIOR * PRIOR], dtype=torch.float64)
        return sum((q * (q / prior).log()).sum() for q in self.probs())


def by_unit(mask, number):
    return torch.repeat_interleave(mask, torch.tensor(list(BLOCKS.values())[number]))


def masks_of(widths):
    return [(torch.arange(3) < width).double() for width in widths]


def scripted(nested, widths):
    """Have the orders draw these (width of the first group, of the second), one pair after the other."""
    for number, order in enumerate(nested.orders.values()):
        script = iter([pair[number] for pair in widths])
        order.sample = lambda shape, generator=None, script=script: torch.tensor(next(script))


def close(given, expected):
    torch.testing.assert_close(given, expected, rtol=1e-6, atol=1e-8)  # the prior is a float32 chain


@pytest.mark.parametrize(("weights", "order_weight"), [("gaussian", None), ("gaussian", 0.05), (None, None)])
def test_expectation_and_mean_gradient_over_all_pairs_of_draws_are_exact(weights, order_weight):
    """In eval mode the weights are their means, so that nothing but the widths is random."""
    nested, kappa = network(weights).eval(), 0.7
    hand, cuts = ByHand(nested), list(itertools.product(WIDTHS, WIDTHS))
    divergence = WEIGHT_KLS["log_uniform"]
    p, q = hand.probs()
    exact = (order_weight or kappa / N) * hand.order_kl()
    for first, second in cuts:
        masks = masks_of((first, second))
        parts = [cross_entropy(hand.output(X[rows], masks), Y[rows]) for rows in (slice(4), slice(4, 8))]
        phi = kappa / N * hand.weight_kl(divergence, masks) if weights else 0.0
        chance = p[first - 1] * q[second - 1]
        exact = exact + chance * sum(parts) / 2 + (chance if order_weight is None else chance.detach()) * phi
    if weights:  # Phi2: the same as the divergences weighed by the keep probabilities
        phi2 = hand.weight_kl(divergence, hand.keep_probs())
        drawn = sum(p[i - 1] * q[j - 1] * hand.weight_kl(divergence, masks_of((i, j))) for i, j in cuts)
        close(drawn, phi2)
    expected = torch.autograd.grad(exact, list(nested.parameters()))
    mean = [torch.zeros_like(own) for own in expected]
    total = 0.0
    for pair in itertools.product(cuts, repeat=2):
        scripted(nested, pair)
        chance = math.prod(float((p[i - 1] * q[j - 1]).detach()) for i, j in pair)
        loss = elbo(nested, (X, Y), dataset_size=N, kappa=kappa, prior_keep=PRIOR, order_weight=order_weight)
        total += chance * float(loss.detach())
        for own, gradient in zip(mean, torch.autograd.grad(loss, list(nested.parameters())), strict=True):
            own += chance * gradient
    close(total, float(exact.detach()))
    for own, gradient in zip(mean, expected, strict=True):
        close(own, gradient)


@pytest.mark.parametrize(("draws", "order_weight"), [(1, 0.05), (2, 0.05), (1, None)])
def test_every_width_is_exact_in_expectation_over_all_draws(draws, order_weight, monkeypatch):
    """Widths below two blocks are raised to two. The orders minimise the NLL that they lead to, whoever teaches."""
    monkeypatch.setattr(objectives, "SMALLEST_BATCH", N + 1)
    nested, kappa, distil, least = network().eval(), 0.7, 0.3, 2
    hand, cuts = ByHand(nested), list(itertools.product(WIDTHS, WIDTHS))
    p, q = hand.probs()
    teacher = hand.output(X, masks_of((3, 3))).detach().softmax(1)

    def parts(widths, share):
        """Loss, NLL and divergence of the whole batch at a cut."""
        masks = masks_of(widths)
        output = hand.output(X, masks)
        nll = cross_entropy(output, Y)
        loss = (1 - share) * nll + share * cross_entropy(output, teacher)
        return loss + kappa / N * hand.weight_kl(WEIGHT_KLS["log_uniform"], masks), nll

    order_term = (order_weight or kappa / N) * hand.order_kl()
    drawn, sought = 0.0, order_term
    for first, second in cuts:
        loss, nll = parts((max(first, least), max(second, least)), distil)
        chance = p[first - 1] * q[second - 1]
        drawn = drawn + chance.detach() * loss
        sought = sought + chance * nll.detach()
    widths = (parts((3, 3), 0.0)[0] + parts((least, least), distil)[0] + draws * drawn) / (2 + draws)
    expected = torch.autograd.grad(widths + sought, list(nested.parameters()))
    mean = [torch.zeros_like(own) for own in expected]
    total = 0.0
    options = {"objective": "every_width", "cuts": (2 / 3, 1.0), "distil": distil, "draws": draws, "kappa": kappa}
    for script in itertools.product(cuts, repeat=draws):
        scripted(nested, script)
        chance = math.prod(float((p[i - 1] * q[j - 1]).detach()) for i, j in script)
        terms = elbo_terms(nested, (X, Y), dataset_size=N, prior_keep=PRIOR, order_weight=order_weight, **options)
        raised = [tuple(max(width, least) for width in pair) for pair in script]
        assert [tuple(cut.as_dict().values()) for cut in terms.cuts] == [(3, 3), (least, least), *raised]
        total += chance * float(terms.loss.detach())
        for own, gradient in zip(mean, torch.autograd.grad(terms.loss, list(nested.parameters())), strict=True):
            own += chance * gradient
    close(total, float((widths + order_term).detach()))
    close(terms.order_kl, hand.order_kl())
    for own, gradient in zip(mean, expected, strict=True):
        close(own, gradient)


def test_parts_are_those_of_the_drawn_cuts():
    nested = network().eval()
    hand, drawn = ByHand(nested), [(2, 3), (1, 2)]
    scripted(nested, drawn)
    terms = elbo_terms(nested, (X, Y), dataset_size=N, kappa=0.3, prior_keep=PRIOR)
    nlls = [
        cross_entropy(hand.output(X[4 * i : 4 * i + 4], masks_of(w)), Y[4 * i : 4 * i + 4]) for i, w in enumerate(drawn)
    ]
    kls = [hand.weight_kl(WEIGHT_KLS["log_uniform"], masks_of(widths)) for widths in drawn]
    assert [tuple(cut.as_dict().values()) for cut in terms.cuts] == drawn
    close(terms.nll, sum(nlls) / 2)
    close(terms.weight_kl, sum(kls) / 2)
    close(terms.order_kl, hand.order_kl())
    close(terms.loss, terms.nll + 0.3 / N * (terms.weight_kl + terms.order_kl))
    assert not any(own.requires_grad for own in (terms.nll, terms.weight_kl, terms.order_kl))


@pytest.mark.parametrize("first", WIDTHS)
def test_noise_of_the_weights_gives_the_expected_squared_error(first):
    """Two linear layers with a cut between: the mean and the variance of their output are known in closed form."""
    torch.manual_seed(0)
    nested = nl.nest(_linear_pair(), normal(2, 4, dtype=torch.float64), num_blocks=3, num_always=1, order="full")
    inner, outer = nested.module[0].posterior, nested.module[1].posterior
    with torch.no_grad():
        inner.log_alpha.copy_(normal(6, 4, seed=3) + 1)
        outer.log_alpha.copy_(normal(2, 6, seed=4) + 1)
    x, y, kept = normal(4, seed=5, dtype=torch.float64), normal(2, seed=6, dtype=torch.float64), 2 * first
    mean = inner.mean[:kept] @ x + nested.module[0].bias[:kept]
    variance = (inner.log_alpha.exp() * inner.mean.square())[:kept] @ x.square()
    weight, noise = outer.mean[:, :kept], (outer.log_alpha.exp() * outer.mean.square())[:, :kept]
    output = weight @ mean + nested.module[1].bias
    spread = (noise + weight.square()) @ (variance + mean.square()) - weight.square() @ mean.square()
    expected = 0.5 * ((y - output).square() + spread).mean() + 0.5 * math.log(2 * math.pi)
    (order,) = nested.orders.values()
    order.sample = lambda shape, generator=None: torch.tensor(first)
    number = 20_000
    batch = x.expand(number, -1), y.expand(number, -1)
    torch.manual_seed(1)
    found = [elbo_terms(nested.train(), batch, dataset_size=N, likelihood="gaussian").nll for _ in range(5)]
    error = torch.stack(found).std() / 5**0.5
    assert abs(float(torch.stack(found).mean() - expected.detach())) < 5 * float(error) + 1e-3
    assert float(spread.detach().mean()) > 0.1  # noise that a network without it would miss


def _linear_pair():
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)).double()


@pytest.mark.parametrize("order_weight", [None, 0.05])
@pytest.mark.parametrize("estimator", ["relaxed", "straight_through"])
def test_masked_estimators_are_a_masked_network_with_the_expected_divergence(estimator, order_weight):
    """Masks that are a known function of the logits stand for samples, so that values and gradients are exact."""
    nested = network().eval()
    hand, asked = ByHand(nested), []
    for order in nested.orders.values():
        order.rsample = lambda _shape, _generator, order=order: order.keep_probs().square()
        order.straight_through = lambda relaxed: asked.append(None) or relaxed
    options = {"kappa": 0.3, "prior_keep": PRIOR, "order_weight": order_weight}
    terms = elbo_terms(nested, (X, Y), dataset_size=N, estimator=estimator, **options)
    masks = [own.square() for own in hand.keep_probs()]
    kept = [own if order_weight is None else own.detach() for own in hand.keep_probs()]
    phi2 = hand.weight_kl(WEIGHT_KLS["log_uniform"], kept)
    expected = cross_entropy(hand.output(X, masks), Y) + 0.3 / N * phi2 + (order_weight or 0.3 / N) * hand.order_kl()
    assert len(asked) == (4 if estimator == "straight_through" else 0)
    close(terms.loss, expected)
    close(terms.weight_kl, phi2)
    parameters = list(nested.parameters())
    for given, wanted in zip(
        torch.autograd.grad(terms.loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        close(given, wanted)


@pytest.mark.parametrize("estimator", ["relaxed", "straight_through"])
def test_masked_estimators_draw_from_the_orders(estimator):
    nested = network(weights=None).train()
    torch.manual_seed(0)
    found = [float(elbo(nested, (X, Y), dataset_size=N, estimator=estimator).detach()) for _ in range(20)]
    assert np.std(found) > 1e-3
    if estimator == "straight_through":  # a mask of ones and zeros computes what a cut does
        hand = ByHand(nested)
        order_kl = float(elbo_terms(nested, (X, Y), dataset_size=N).order_kl) / N
        cuts = itertools.product(WIDTHS, WIDTHS)
        possible = [
            [
                float(cross_entropy(hand.output(X[rows], masks_of(cut)), Y[rows]).detach())
                for cut in itertools.product(WIDTHS, WIDTHS)
            ]
            for rows in (slice(4), slice(4, 8))
        ]
        sums = np.add.outer(*map(np.array, possible)) / 2 + order_kl
        assert len(list(cuts)) == 9
        assert all(np.abs(sums - loss).min() < 1e-8 for loss in found)


def test_masked_estimators_need_downhill_orders_only_where_something_is_learned():
    fixed = network(weights=None, order="uniform")
    assert torch.isfinite(elbo(fixed, (X, Y), dataset_size=N, estimator="relaxed"))


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("hierarchical", lambda a: 0.5 * np.log1p(np.exp(-a))),
        ("molchanov", lambda a: 0.63576 / (1 + np.exp(1.8732 + 1.48695 * a)) + 0.5 * np.log1p(np.exp(-a))),
        ("log_uniform", lambda a: _quadrature(a)),
        (
            "bn3",
            lambda a: 0.5 * np.log1p(np.exp(-a)) - 0.7294 * np.exp(-np.exp(0.5387) * (-0.2041 + 0.3492 * a) ** 2),
        ),
        ("bn3_refitted", lambda a: 0.5 * np.log1p(np.exp(-a)) - 0.5896 * np.exp(-((-0.2272 + 0.4535 * a) ** 2))),
    ],
)
def test_divergence_of_the_weights_is_a_sum_over_those_kept(name, by_hand):
    nested = network().eval()
    scripted(nested, [(2, 1)])
    terms = elbo_terms(nested, (X[:2], Y[:2]), dataset_size=N, weight_kl=name)
    first, second, third = (own.detach().numpy() for own in ByHand(nested).log_alphas)
    kept = np.concatenate([own.ravel() for own in (first[:4], second[:2, :4], third[:, :2])])
    assert float(terms.weight_kl) == pytest.approx(by_hand(kept).sum(), rel=1e-6)


def _quadrature(log_alpha):
    """int_0^inf [1 - exp(-sech^2(s) / (2 alpha))] ds, by the trapezium rule."""
    s = np.linspace(0, 30, 60_001)
    values = -np.expm1(-0.5 * np.exp(-log_alpha)[:, None] / np.cosh(s) ** 2)
    return np.trapezoid(values, s, axis=1)


def test_widths_are_drawn_as_the_options_say():
    """Orders that would always keep everything, so that narrow cuts can only come from the options."""
    nested = network(weights=None)
    for order in nested.orders.values():
        order.logits.data.fill_(60.0)

    def drawn(**options):
        torch.manual_seed(0)
        cuts = [cut for _ in range(15) for cut in elbo_terms(nested, (X, Y), dataset_size=N, **options).cuts]
        return {tuple(cut.as_dict().values()) for cut in cuts}

    assert drawn() == drawn(coupled=1.0) == {(3, 3)}
    assert drawn(sandwich=1.0) == {(1, 1), (3, 3)}
    assert drawn(explore=1.0, coupled=1.0) == {(1, 1), (2, 2), (3, 3)}
    assert len(drawn(explore=1.0)) > 3


def test_divergences_shrink_with_the_data():
    def divergences(size):
        nested = network().eval()
        scripted(nested, [(2, 3), (3, 1)])
        terms = elbo_terms(nested, (X, Y), dataset_size=size, kappa=0.5)
        return float(terms.loss.detach() - terms.nll)

    assert divergences(N) == pytest.approx(2 * divergences(2 * N), rel=1e-9)


def test_divergences_are_per_labelled_element():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 2, 1))
    nested = nl.nest(module, normal(2, 1, 5, 4), num_blocks=3, num_always=1)
    x, y = normal(6, 1, 5, 4), labels(2, 6, 5, 4)
    terms = elbo_terms(nested, (x, y), dataset_size=N, kappa=0.5)
    expected = 0.5 * (terms.weight_kl + terms.order_kl) / (N * 20)
    torch.testing.assert_close(terms.loss.detach() - terms.nll, expected)
    rated = elbo_terms(nested, (x, labels(2, 6, 3, 5, 4)), dataset_size=N, kappa=0.5)
    expected = 0.5 * (rated.weight_kl + rated.order_kl) / (N * 60)
    torch.testing.assert_close(rated.loss.detach() - rated.nll, expected)


@pytest.mark.parametrize(("size", "draws", "parts"), [(1, 2, 1), (2, 1, 1), (5, 2, 2), (7, 3, 3), (4, 9, 2), (8, 4, 4)])
def test_a_batch_of_any_size_is_used_whole(size, draws, parts):
    nested = network(weights=None, order="full").train()
    x = X[:size].clone().requires_grad_()
    terms = elbo_terms(nested, (x, Y[:size]), dataset_size=N, draws=draws)
    assert len(terms.cuts) == parts
    terms.loss.backward()
    assert bool((x.grad.abs().sum(1) > 0).all())
    if size % parts == 0:
        close(terms.loss.detach(), cross_entropy(nested.module(X[:size]), Y[:size]).detach())


def test_fixed_orders_have_no_divergence_of_their_own():
    for order in ("uniform", "geometric", "full"):
        terms = elbo_terms(network(weights=None, order=order), (X, Y), dataset_size=N)
        assert float(terms.order_kl) == float(terms.weight_kl) == 0.0
        assert float(terms.loss.detach()) == float(terms.nll)


def test_a_network_without_groups_trains_too():
    nested = nl.nest(nn.Linear(4, 3).double(), X)
    terms = elbo_terms(nested, (X, Y), dataset_size=N)
    assert terms.cuts == (nl.Cut(()),) * 2
    terms.loss.backward()
    assert all(parameter.grad is not None for parameter in nested.parameters())


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, a, b, scale=1.0):
        return self.last(torch.relu(self.first(a - scale * b)))


@pytest.mark.parametrize("kind", ["dict", "tuple", "list"])
def test_inputs_of_several_tensors(kind):
    torch.manual_seed(0)
    a, b = X, normal(8, 4, seed=9, dtype=torch.float64)
    inputs = {"dict": {"a": a, "b": b, "scale": 0.5}, "tuple": (a, b, 0.5), "list": [a, b, 0.5]}[kind]
    nested = nl.nest(TwoInputs().double(), inputs, weights=None, order="full")
    expected = cross_entropy(nested.module(a, b, 0.5), Y)
    close(elbo(nested, (inputs, Y), dataset_size=N), expected)
    close(elbo(nested, [inputs, Y], dataset_size=N, draws=4), expected)


BAD_BATCHES = {
    "no pair": (X, Y, Y),
    "no tuple": X,
    "targets that are no tensor": (X, Y.tolist()),
    "no inputs": ((), Y),
    "sizes that differ": (X[:3], Y),
    "inputs that differ": ((X, X[:3]), Y),
    "no example": (X[:0], Y[:0]),
}


@pytest.mark.parametrize("batch", BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_bad_batches(batch):
    with pytest.raises(ArgumentError) as caught:
        elbo(network(), batch, dataset_size=N)
    assert caught.value.name == "batch"


@pytest.mark.parametrize("batch", [(X, torch.tensor(1)), ((X, torch.tensor(1.0)), Y)], ids=["targets", "inputs"])
def test_tensors_without_a_batch_axis(batch):
    with pytest.raises(ArgumentError):
        elbo(network(), batch, dataset_size=N)


def test_targets_that_do_not_fit():
    with pytest.raises(ArgumentError):
        elbo(network(), (X, Y[:, None]), dataset_size=N)
    with pytest.raises(ArgumentError):
        elbo(network(), (X, Y), dataset_size=N, likelihood="gaussian")


@pytest.mark.parametrize("targets", [Y + 5, Y - 1, Y + 0.5], ids=["high", "low", "real"])
def test_labels_that_are_no_classes(targets):
    with pytest.raises(ArgumentError):
        elbo(network(), (X, targets), dataset_size=N)


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_bad_dataset_size(size):
    with pytest.raises(ArgumentError) as caught:
        elbo(network(), (X, Y), dataset_size=size)
    assert caught.value.name == "dataset_size"


def test_unknown_likelihood():
    with pytest.raises(ArgumentError) as caught:
        elbo(network(), (X, Y), dataset_size=N, likelihood="poisson")
    assert caught.value.name == "likelihood"


@pytest.mark.parametrize(
    "option",
    [
        {"objective": "bound"},
        {"estimator": "enumerate"},
        {"weight_kl": "kl"},
        {"distil": 1.5},
        {"draws": 0},
        {"draws": 2.5},
        {"kappa": math.nan},
        {"kappa": -1.0},
        {"explore": 2.0},
        {"coupled": -0.5},
        {"sandwich": 1.5},
        {"order_weight": -1.0},
        {"prior_keep": 1.0},
        {"prior_keep": 1.5},
    ],
    ids=str,
)
def test_bad_options(option):
    with pytest.raises(ArgumentError) as caught:
        elbo(network(), (X, Y), dataset_size=N, **option)
    assert caught.value.name == next(iter(option))


def test_an_option_that_no_recipe_has():
    with pytest.raises(ArgumentError, match="temper"):
        elbo(network(), (X, Y), dataset_size=N, temper=0.5)


def test_options_are_those_of_a_recipe_and_its_defaults():
    nested = network().eval()

    def loss(**options):
        generator = torch.Generator().manual_seed(0)
        return step_loss(nested, (X, Y), dataset_size=N, generator=generator, **options).detach()

    recipe = Recipe(kappa=0.3, draws=3, distil=0.2, prior_keep=0.7)
    assert loss() == loss(recipe=Recipe()) == loss(objective="every_width", kappa="auto", draws=1, distil=0.5)
    assert loss(recipe=recipe) == loss(kappa=0.3, draws=3, distil=0.2, prior_keep=0.7)
    assert loss(recipe=recipe, distil=0.9) == loss(recipe=recipe.but(distil=0.9)) != loss(recipe=recipe)


@pytest.mark.parametrize("size", [N, 10_000])
def test_kappa_by_default_is_tempered_for_more_weights_than_examples(size):
    nested = network().eval()
    number = sum(own.numel() for own in ByHand(nested).log_alphas)
    assert N < number < 10_000
    terms, free = (step_terms(nested, (X, Y), dataset_size=size, cuts=(1.0,), **own) for own in ({}, {"kappa": 0.0}))
    close((terms.loss - free.loss).detach(), terms.weight_kl / (number if size == N else size))


def test_the_prior_of_orders_has_their_precision_whatever_came_before():
    single, double = nested_mlp(weights=None), nested_mlp(weights=None).double()
    order_divergence(single, 0.9)
    priors = [BernoulliChain(torch.full((2,), 0.9, dtype=torch.float64)) for _ in double.orders]
    expected = sum(kl(own, prior) for own, prior in zip(double.orders.values(), priors, strict=True))
    assert float((order_divergence(double, 0.9) - expected).detach().abs()) < 1e-14
