"""Objectives of the whole batch against networks that are cut by hand, one after the other, with torch's own losses."""

import itertools
import math
from collections import Counter
from copy import deepcopy

import pytest
import torch
from scipy import stats
from small_networks import (
    QUICK,
    examples,
    images,
    labels,
    nested_mlp,
    nested_norms,
    normal,
    norms_module,
    same_tensors,
)
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import nestling as nl
from nestling.distributions import log_uniform_kl
from nestling.distributions.gates import GaussianGate
from nestling.errors import ArgumentError
from nestling.training import Recipe, elbo_terms, objectives, train
from nestling.training.loop import Loop
from nestling.training.objectives import soft_cross_entropy
from nestling.training.terms import order_divergence
from nestling.training.widths import draw_fraction

N = 50
X, Y = normal(8, 1, 4, 4, dtype=torch.float64), labels(3, 8)
UNITS = ({1: 2, 2: 4, 3: 6}, {1: 2, 2: 4, 3: 5})
"""Channels of the first and of the second convolution at each width."""
OTHERS = ("us_net", "slimmable")
WHOLE = ("every_width", *OTHERS)
ALL = ("elbo", *WHOLE)


@pytest.fixture
def whole_batches(monkeypatch):
    """Narrower widths run whole batches, as networks cut by hand do."""
    monkeypatch.setattr(objectives, "SMALLEST_BATCH", N)


def terms_of(nested, batch, seed=0, kappa=0.0, likelihood="categorical", teacher=None, **changes):
    generator = torch.Generator().manual_seed(seed)
    recipe = Recipe(kappa=kappa, **changes)
    own = {"likelihood": likelihood, "teacher": teacher, "generator": generator}
    return elbo_terms(nested, batch, dataset_size=N, recipe=recipe, **own)


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


def mixed_loss(distil, given=None):
    """Labels and a teacher's probabilities: those given, or of the full width, which learns the labels alone."""

    def loss_of(output, first):
        taught = first if given is None else given
        labelled = functional.cross_entropy(output, Y)
        if taught is None:
            return labelled
        return (1 - distil) * labelled + distil * functional.cross_entropy(output, taught.softmax(1))

    return loss_of


def order_gradients(nested, terms):
    """Those of the orders' logits, None for orders that the loss does not depend on."""
    logits = [own for order in nested.orders.values() for own in order.parameters()]
    return torch.autograd.grad(terms.loss, logits, retain_graph=True, allow_unused=True) if logits else ()


def check_gradient(nested, terms, loss_of):
    """Loss and gradient are the mean of those of hand-cut networks, beside the orders' divergence if they drew."""
    sums, losses = gradients_by_hand(nested, terms.cuts, loss_of)
    number = len(terms.cuts)
    drew = any(own is not None for own in order_gradients(nested, terms))
    expected = sum(losses) / number + drew * Recipe().order_weight * float(terms.order_kl)
    assert float(terms.loss.detach()) == pytest.approx(expected, rel=1e-9)
    terms.loss.backward()
    for name, own in nested.module.named_parameters():
        torch.testing.assert_close(own.grad, sums[name] / number)


@pytest.mark.parametrize("has_teacher", [False, True], ids=["alone", "with a teacher"])
@pytest.mark.parametrize("distil", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("order", ["uniform", "downhill"])
@pytest.mark.usefixtures("whole_batches")
def test_every_width_learns_the_labels_and_from_its_teacher(order, distil, has_teacher):
    nested = nested_norms(weights=None, order=order).double().train()
    for own in itertools.chain.from_iterable(each.parameters() for each in nested.orders.values()):
        own.data.zero_()
    teacher = norms_module(seed=7).double().eval() if has_teacher else None
    terms = terms_of(nested, (X, Y), teacher=teacher, distil=distil, draws=6, coupled=0.2, cuts=(0.5, 1 / 3, 1.0))
    widths = [tuple(cut.as_dict().values()) for cut in terms.cuts]
    assert widths[0] == ((1, 1) if has_teacher else (3, 3))
    assert widths[1] in (((2, 2), (3, 3)) if has_teacher else ((1, 1), (2, 2)))
    assert len(widths) == 8
    assert len(set(widths)) > 3
    assert (float(terms.order_kl) > 0) == (order == "downhill")
    assert float(terms.weight_kl) == 0.0
    given = None if teacher is None else teacher(X).detach() / 2
    check_gradient(nested, terms, mixed_loss(distil, given))
    nlls = [functional.cross_entropy(hand_cut(nested, pair)[0].train()(X), Y) for pair in widths]
    torch.testing.assert_close(terms.nll, sum(nlls).detach() / len(widths))
    assert teacher is None or all(own.grad is None for own in teacher.parameters())


@pytest.mark.parametrize("objective", OTHERS)
def test_the_other_objectives_learn_from_a_teacher_too(objective):
    """What had the labels alone learns from both; US-Net's narrower widths keep learning from a teacher alone."""
    nested = nested_norms(weights=None).double().train()
    teacher = norms_module(seed=7).double().eval()
    given = teacher(X).detach() / 2
    terms = terms_of(nested, (X, Y), teacher=teacher, objective=objective, distil=0.3, draws=2, cuts=(1 / 3, 1.0))
    shares = {"us_net": [0.3, 1.0, 1.0, 1.0], "slimmable": [0.3, 0.3]}[objective]
    assert len(terms.cuts) == len(shares)
    ahead = iter(shares)
    check_gradient(nested, terms, lambda output, _: mixed_loss(next(ahead), given)(output, None))


@pytest.mark.parametrize(("has_teacher", "share"), [(False, 0.5), (True, 0.9)], ids=["alone", "with a teacher"])
@pytest.mark.usefixtures("whole_batches")
def test_how_much_is_distilled_by_default(has_teacher, share):
    nested = nested_norms(weights=None).double().train()
    teacher = norms_module(seed=7).double().eval() if has_teacher else None
    given = None if teacher is None else teacher(X).detach() / 2
    check_gradient(nested, terms_of(nested, (X, Y), teacher=teacher), mixed_loss(share, given))


@pytest.mark.usefixtures("whole_batches")
def test_a_teacher_is_softened_as_the_recipe_says():
    nested, teacher = nested_norms(weights=None).double().train(), norms_module(seed=7).double().eval()
    terms = terms_of(nested, (X, Y), teacher=teacher, soften=3.5)
    check_gradient(nested, terms, mixed_loss(0.9, teacher(X).detach() / 3.5))
    terms = terms_of(nested, (X, Y), soften=3.5)

    def loss_of(output, first):
        return mixed_loss(0.5)(output, None if first is None else first / 3.5)

    nested.zero_grad()
    check_gradient(nested, terms, loss_of)


@pytest.mark.parametrize("distil", [0.5, 1.0])
def test_the_full_width_learns_the_labels_alone_unless_there_is_another_teacher(distil):
    nested = nested_norms(weights=None, order="uniform").double().train()
    teacher = norms_module(seed=7).double().eval()
    alone = terms_of(nested, (X, Y), distil=distil, cuts=(1.0,))
    taught = terms_of(nested, (X, Y), distil=distil, cuts=(1.0,), teacher=teacher)
    output = hand_cut(nested, (3, 3))[0].train()(X)
    labelled, soft = functional.cross_entropy(output, Y), functional.cross_entropy(output, (teacher(X) / 2).softmax(1))
    torch.testing.assert_close(alone.loss, labelled)
    torch.testing.assert_close(taught.loss, (1 - distil) * labelled + distil * soft)
    assert abs(float((taught.loss - alone.loss).detach())) > 1e-2
    assert alone.nll == taught.nll


@pytest.mark.parametrize("weights", ["gaussian", None])
@pytest.mark.parametrize("cuts", [(1.0,), (1.0, 0.9), (1.0, 0.9, 1.0)], ids=str)
def test_one_pass_where_the_narrowest_cut_is_the_full_width(weights, cuts):
    """Of three blocks 0.9 rounds to all."""
    nested, x = nested_mlp(weights=weights).eval(), normal(8, 4)
    terms = terms_of(nested, (x, Y), draws=3, cuts=cuts)
    assert [tuple(cut.as_dict().values()) for cut in terms.cuts] == [(3, 3)]
    expected = functional.cross_entropy(nested(x), Y) + Recipe().order_weight * terms.order_kl
    torch.testing.assert_close(terms.loss, expected)


def test_each_of_the_recipes_cuts_but_the_full_width_is_run_as_often():
    """Those that round to the same are one, and what is drawn beside them starts at the narrowest."""
    nested, x = nested_mlp(weights=None), normal(8, 4)
    generator, cuts = torch.Generator().manual_seed(0), (1.0, 2 / 3, 1 / 3, 0.3, 0.9)
    options = {"dataset_size": N, "generator": generator, "cuts": cuts, "coupled": 0.0, "explore": 1.0}
    with torch.no_grad():
        passes = [
            [tuple(own.as_dict().values()) for own in elbo_terms(nested, (x, Y), **options).cuts] for _ in range(400)
        ]
    assert {own[0] for own in passes} == {(3, 3)}
    anchors = Counter(own[1] for own in passes)
    assert anchors.keys() == {(1, 1), (2, 2)}
    assert stats.binomtest(anchors[1, 1], len(passes), 0.5).pvalue > 1e-4
    table = Counter((own[1], own[2]) for own in passes)
    pairs = itertools.product(((1, 1), (2, 2)), itertools.product((1, 2, 3), repeat=2))
    assert stats.chisquare([table[pair] for pair in pairs]).pvalue > 1e-4, "whichever cut the anchor is"


def test_the_narrowest_cut_is_always_run_where_another_network_teaches():
    """The full width, which need not teach, is one of the others."""
    nested, x, teacher = nested_mlp(weights=None), normal(8, 4), nn.Linear(4, 3)
    options = {"dataset_size": N, "generator": torch.Generator().manual_seed(0), "cuts": (1.0, 2 / 3, 1 / 3)}
    with torch.no_grad():
        steps = [elbo_terms(nested, (x, Y), teacher=teacher, **options).cuts for _ in range(300)]
    widths = [[tuple(cut.as_dict().values()) for cut in cuts] for cuts in steps]
    assert {passes[0] for passes in widths} == {(1, 1)}
    others = Counter(passes[1] for passes in widths)
    assert others.keys() == {(2, 2), (3, 3)}
    assert stats.binomtest(others[2, 2], len(widths), 0.5).pvalue > 1e-4


def test_cuts_between_the_narrowest_and_the_widest_are_chosen_twice_as_often():
    nested, x = nested_mlp(weights=None, num_blocks=6, num_always=1), normal(8, 4)
    options = {
        "dataset_size": N,
        "generator": torch.Generator().manual_seed(0),
        "cuts": (1 / 6, 1 / 3, 1 / 2, 2 / 3, 1.0),
    }
    with torch.no_grad():
        chosen = Counter(elbo_terms(nested, (x, Y), **options).cuts[1].widths[0][1] for _ in range(600))
    shares = [1 / 6, 2 / 6, 2 / 6, 1 / 6]
    assert stats.chisquare([chosen[width] for width in (1, 2, 3, 4)], [600 * share for share in shares]).pvalue > 1e-4


def test_of_several_cuts_per_step_the_narrowest_is_always_one_and_wider_ones_are_rarer():
    """Of the other three, two in a step without repetition, with weights of 3, 2 and 1: enumerated."""
    nested, x = nested_mlp(weights=None, num_blocks=6, num_always=1), normal(8, 4)
    options = {"dataset_size": N, "generator": torch.Generator().manual_seed(0), "anchors": 3}
    cuts = (1 / 6, 1 / 3, 1 / 2, 2 / 3, 1.0)
    with torch.no_grad():
        steps = [elbo_terms(nested, (x, Y), cuts=cuts, **options).cuts for _ in range(600)]
    widths = [tuple(cut.widths[0][1] for cut in passes[:4]) for passes in steps]
    assert {own[:2] for own in widths} == {(6, 1)}
    weights, chances = {2: 3, 3: 2, 4: 1}, Counter()
    for first, second in itertools.permutations(weights, 2):
        chances[tuple(sorted((first, second)))] += weights[first] / 6 * weights[second] / (6 - weights[first])
    counted = Counter(own[2:] for own in widths)
    assert counted.keys() == chances.keys()
    assert stats.chisquare([counted[pair] for pair in chances], [600 * p for p in chances.values()]).pvalue > 1e-4


@pytest.mark.parametrize(("given", "halves"), [(1, [None, 0, 1]), (2, [None, 0, 1, 0]), (9, [None, 0, 1, 0])])
def test_halves_of_a_batch_run_at_narrower_widths_by_turns(given, halves):
    """At cuts of the recipe first, at a drawn one last; all learn from the full width's predictions too."""
    nested = nested_norms(weights=None, order="uniform").double().train()
    full = hand_cut(nested, (3, 3))[0].train()(X)
    rows = {None: slice(8), 0: slice(4), 1: slice(4, 8)}

    def narrow(widths, half):
        output = hand_cut(nested, widths)[0].train()(X[rows[half]])
        taught = functional.cross_entropy(output, full[rows[half]].softmax(1))
        return 0.7 * functional.cross_entropy(output, Y[rows[half]]) + 0.3 * taught

    for seed in range(10):
        options = {"distil": 0.3, "cuts": (1 / 3, 2 / 3, 1.0), "coupled": 0.0, "anchors": given}
        terms = terms_of(nested, (X, Y), seed, **options)
        whole, *narrower = (tuple(cut.as_dict().values()) for cut in terms.cuts)
        assert whole == (3, 3)
        assert set(narrower[:-1]) <= {(1, 1), (2, 2)}
        assert len(set(narrower[:-1])) == len(narrower) - 1 == min(given, 2)
        losses = [narrow(widths, half) for widths, half in zip(narrower, halves[1:], strict=True)]
        torch.testing.assert_close(terms.loss, (functional.cross_entropy(full, Y) + sum(losses)) / len(halves))


@pytest.mark.parametrize(("steps", "anchors"), [(0, 1), (10_000, 1), (10_001, 2)])
def test_long_runs_have_two_of_the_recipes_cuts_per_step(steps, anchors):
    assert Recipe().settled(has_teacher=False, num_steps=steps).anchors == anchors
    assert Recipe(anchors=3).settled(has_teacher=False, num_steps=steps).anchors == 3


def test_three_examples_are_not_divided():
    nested = nested_norms(weights=None, order="uniform").double().train()
    terms = terms_of(nested, (X[:3], Y[:3]), distil=0.0, cuts=(1 / 3, 1.0))
    losses = [
        functional.cross_entropy(hand_cut(nested, c.as_dict().values())[0].train()(X[:3]), Y[:3]) for c in terms.cuts
    ]
    torch.testing.assert_close(terms.loss, sum(losses) / len(losses))


def drawn_by(nested, number=40, **changes):
    terms = [terms_of(nested, (X, Y), seed, **changes) for seed in range(number)]
    return {tuple(cut.as_dict().values()) for own in terms for cut in own.cuts[2:]}


def test_widths_are_drawn_as_the_recipe_says():
    """Orders that would always keep everything, so that other cuts can only come from the recipe."""
    nested = nested_norms(weights=None).double()
    for order in nested.orders.values():
        order.logits.data.fill_(60.0)
    assert drawn_by(nested, coupled=0.0, explore=0.0) == {(3, 3)}
    assert drawn_by(nested, coupled=1.0) == {(1, 1), (2, 2), (3, 3)}
    assert drawn_by(nested, coupled=1.0, cuts=(2 / 3, 1.0)) == {(2, 2), (3, 3)}
    assert drawn_by(nested, coupled=0.0, explore=1.0, draws=3) == set(itertools.product((1, 2, 3), repeat=2))
    assert drawn_by(nested, coupled=0.0, explore=1.0, cuts=(2 / 3, 1.0)) == set(itertools.product((2, 3), repeat=2))
    for order in nested.orders.values():
        order.logits.data.fill_(-60.0)
    assert drawn_by(nested, coupled=0.0, explore=0.0) == {(1, 1)}
    assert drawn_by(nested, coupled=0.0, explore=0.0, cuts=(2 / 3, 1.0)) == {(2, 2)}


def test_orders_learn_the_loss_of_their_own_draws_alone():
    """Cuts that are coupled or explored, or at the ends, leave them as they are."""
    nested = nested_norms(weights=None).double().train()
    for changes in ({"coupled": 1.0}, {"coupled": 0.0, "explore": 1.0}, {"cuts": (1.0,)}):
        assert order_gradients(nested, terms_of(nested, (X, Y), draws=3, **changes)) == (None, None)
    found = order_gradients(nested, terms_of(nested, (X, Y), draws=3, coupled=0.0, explore=0.0))
    logits = [order.logits for order in nested.orders.values()]
    held = torch.autograd.grad(Recipe().order_weight * order_divergence(nested, Recipe().prior_keep), logits)
    assert not any(torch.allclose(own, other) for own, other in zip(found, held, strict=True))


def test_orders_do_not_learn_what_the_teacher_says():
    nested, options = nested_norms(weights=None).double().train(), {"coupled": 0.0, "explore": 0.0, "draws": 2}
    for teacher in (None, norms_module(seed=7).double().eval()):
        first, second = (
            order_gradients(nested, terms_of(nested, (X, Y), teacher=teacher, distil=distil, **options))
            for distil in (0.0, 1.0)
        )
        for own, other in zip(first, second, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-9, atol=0)


NUMBERS = normal(8, 2, seed=4, dtype=torch.float64)
BITS = labels(2, 8)
LIKELIHOODS = {
    "gaussian": (NUMBERS, 2, lambda out: functional.gaussian_nll_loss(out, NUMBERS, torch.ones_like(out), full=True)),
    "heteroscedastic_gaussian": (
        *(NUMBERS, 4),
        lambda out: functional.gaussian_nll_loss(out[:, :2], NUMBERS, out[:, 2:].exp(), full=True),
    ),
    "bernoulli": (BITS, 1, lambda out: functional.binary_cross_entropy_with_logits(out[:, 0], BITS.double())),
}
"""Targets, how many outputs they need, and the mean NLL by torch's own losses."""


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.usefixtures("whole_batches")
def test_numbers_and_masks_are_learned_from_the_targets_alone(likelihood):
    """Whatever the share to distil: only the probabilities of classes can be learned from."""
    torch.manual_seed(0)
    y, outputs, nll_by_hand = LIKELIHOODS[likelihood]
    module, x = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)).double(), normal(8, 4).double()
    nested = nl.nest(module, x, weights=None, num_blocks=3, num_always=1, order="uniform")
    inner, outer = nested.module[0], nested.module[2]
    for distil in (0.0, 0.5, 1.0):
        terms = terms_of(nested, (x, y), likelihood=likelihood, draws=2, distil=distil)
        assert len(terms.cuts) == 4
        nlls = []
        for cut in terms.cuts:
            (width,) = cut.as_dict().values()
            kept = slice(2 * width)
            hidden = torch.tanh(x @ inner.weight[kept].T + inner.bias[kept])
            nlls.append(nll_by_hand(hidden @ outer.weight[:, kept].T + outer.bias))
        expected = sum(nlls) / 4
        torch.testing.assert_close(terms.loss, expected, rtol=1e-5, atol=1e-5)  # log-variances are kept in a range
        parameters = list(nested.parameters())
        gradients = (torch.autograd.grad(own, parameters) for own in (terms.loss, expected))
        for found, wanted in zip(*gradients, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("objective", ALL)
def test_the_divergence_of_gates_is_paid_for_once(objective):
    nested, x = nested_mlp().eval(), normal(8, 4)
    plain = terms_of(nested, (x, Y), objective=objective, kappa=0.3)
    nested.module.gates = nn.ModuleList([GaussianGate(5, divergence=log_uniform_kl), GaussianGate(3)])
    for seed, gate in enumerate(nested.module.gates):
        gate.posterior.log_sigma2.data = normal(len(gate.posterior.mean), seed=seed)
    expected = sum(gate.kl() for gate in nested.module.gates)
    terms = terms_of(nested, (x, Y), objective=objective, kappa=0.3)
    assert terms.cuts == plain.cuts
    torch.testing.assert_close(terms.weight_kl - plain.weight_kl, expected.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close((terms.loss - plain.loss).detach(), 0.3 / N * expected.detach(), rtol=1e-3, atol=1e-6)
    scales = [gate.posterior.log_sigma2 for gate in nested.module.gates]
    gradients = torch.autograd.grad(terms.loss, scales)
    for own, alone in zip(gradients, torch.autograd.grad(expected, scales), strict=True):
        torch.testing.assert_close(own, 0.3 / N * alone)


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


@pytest.mark.parametrize("objective", WHOLE)
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


@pytest.mark.parametrize("objective", WHOLE)
def test_processes_that_draw_the_same_widths_share_the_gradient(objective):
    order = "downhill" if objective == "every_width" else "uniform"
    nested, x = nested_mlp(weights=None, order=order).double().train(), normal(8, 4, dtype=torch.float64)

    def gradient(rows, seed=5):
        terms = terms_of(nested, (x[rows], Y[rows]), seed, objective=objective, draws=2, coupled=0.0, explore=0.0)
        return terms.cuts, torch.autograd.grad(terms.loss, list(nested.parameters()))

    cuts, whole = gradient(slice(8))
    halves = [gradient(slice(0, None, 2)), gradient(slice(1, None, 2))]  # as ranks share a batch
    assert [own for own, _ in halves] == [cuts, cuts]
    for own, first, second in zip(whole, halves[0][1], halves[1][1], strict=True):
        torch.testing.assert_close(own, (first + second) / 2)
    others = {gradient(slice(4), seed)[0] for seed in range(8)}
    assert (len(others) > 1) == (objective != "slimmable")


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


@pytest.mark.parametrize("objective", WHOLE)
def test_a_network_without_groups(objective):
    nested, x = nl.nest(nn.Linear(4, 3).double(), normal(2, 4).double(), weights=None), normal(8, 4).double()
    terms = terms_of(nested, (x, Y), objective=objective)
    assert set(terms.cuts) == {nl.Cut(())}
    assert len(terms.cuts) == (3 if objective == "us_net" else 1)
    torch.testing.assert_close(terms.nll, functional.cross_entropy(nested.module(x), Y).detach())


@pytest.mark.parametrize(("objective", "share"), [("us_net", 1.0), ("every_width", 0.5)])
@pytest.mark.usefixtures("whole_batches")
def test_positions_are_distilled_too(objective, share):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 1))
    nested = nl.nest(module, normal(2, 1, 5, 4), num_blocks=3, num_always=1, weights=None, order="uniform")
    x, y = normal(6, 1, 5, 4), labels(3, 6, 5, 4)
    terms = terms_of(nested, (x, y), objective=objective, draws=1)
    outputs = []
    for cut in terms.cuts:
        with nested.at(cut):
            outputs.append(nested(x))
    by_hand = [functional.cross_entropy(outputs[0], y)]
    for output in outputs[1:]:
        soft = functional.cross_entropy(output, outputs[0].softmax(1))
        by_hand.append((1 - share) * functional.cross_entropy(output, y) + share * soft)
    torch.testing.assert_close(terms.loss, sum(by_hand) / 3)


def run(objective, place=None, recipe=QUICK):
    chosen = recipe.but(objective=objective, recalibration_batches=2)
    return train(nested_norms(weights=None), (images(), images(seed=3)), chosen, out=place, quiet=True)


@pytest.mark.parametrize("objective", ALL)
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


def test_training_at_every_width_learns_at_each_and_moves_the_orders():
    nested = nested_mlp(weights=None)
    before = {name: order.logits.detach().clone() for name, order in nested.orders.items()}
    recipe = Recipe(epochs=12, batch_size=16, lr=0.02, samples=1, cuts=(1 / 3, 1.0))
    assert recipe.objective == "every_width"
    found = train(nested, (examples(64), examples(seed=3)), recipe, quiet=True)
    first, last = found.log[0]["validation"], found.log[-1]["validation"]
    assert all(last[cut]["nll"] < first[cut]["nll"] for cut in first)
    assert not any(torch.equal(order.logits, before[name]) for name, order in nested.orders.items())


class Moody(nn.Module):
    """A teacher that says something else in train mode, counts on its norm, and lets gradients through."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.norm(x)) + (100.0 * x[:, :3] if self.training else 0.0)


def test_a_run_with_a_teacher_learns_from_it_and_leaves_it_alone():
    """One step of a network that is whole in every pass, by hand."""
    torch.manual_seed(3)
    nested, teacher, data = nested_mlp(weights=None, order="full"), Moody().train(), examples(8)
    before = {name: own.clone() for name, own in teacher.state_dict().items()}
    by_hand, (x, y) = deepcopy(nested.module), data.tensors
    recipe = QUICK.but(epochs=1, optimiser="sgd", momentum=0.0, lr=0.1, schedule="constant", clip=1e9)
    recipe = recipe.but(cuts=(1.0,), distil=0.7)
    found = train(nested, (data, examples(seed=3)), recipe, teacher=teacher, quiet=True)
    output, given = by_hand(x), deepcopy(teacher).eval()(x).detach()
    loss = 0.3 * functional.cross_entropy(output, y) + 0.7 * functional.cross_entropy(output, (given / 2).softmax(1))
    loss.backward()
    for own, expected in zip(found.nested.module.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(own, expected - 0.1 * expected.grad)
    assert teacher.training
    assert same_tensors(teacher.state_dict(), before)
    assert all(own.requires_grad and own.grad is None for own in teacher.parameters())


@pytest.mark.parametrize(
    ("objective", "likelihood"), [("elbo", "categorical"), ("every_width", "gaussian"), ("slimmable", "bernoulli")]
)
def test_a_teacher_that_nothing_is_learned_from_is_refused(tmp_path, objective, likelihood):
    nested, teacher = nested_mlp(), nn.Linear(4, 3)
    with pytest.raises(ArgumentError, match="every_width") as caught:
        terms_of(nested, (normal(8, 4), Y), objective=objective, likelihood=likelihood, teacher=teacher)
    assert caught.value.name == "teacher"
    data, recipe = (examples(), examples(seed=3)), QUICK.but(objective=objective)
    with pytest.raises(ArgumentError) as caught:
        train(nested, data, recipe, out=tmp_path, likelihood=likelihood, teacher=teacher, quiet=True)
    assert caught.value.name == "teacher"
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian", "heteroscedastic_gaussian"])
def test_probabilities_of_classes_are_needed_to_learn_from_them(tmp_path, likelihood):
    data, recipe = (examples(), examples(seed=3)), QUICK.but(objective="us_net")
    with pytest.raises(ArgumentError, match="us_net") as caught:
        train(nested_mlp(), data, recipe, out=tmp_path, likelihood=likelihood, quiet=True)
    assert caught.value.name == "objective"
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("objective", ["every_width", "slimmable"])
def test_any_likelihood_will_do(objective):
    data = TensorDataset(normal(16, 4), normal(16, 3, seed=1))
    found = train(nested_mlp(), (data, data), QUICK.but(objective=objective), likelihood="gaussian", quiet=True)
    assert math.isfinite(found.log[-1]["loss"])


@pytest.mark.parametrize("objective", ["", "usnet", None, 1])
def test_an_unknown_objective_is_refused(objective):
    with pytest.raises(ArgumentError) as caught:
        Recipe(objective=objective)
    assert caught.value.name == "objective"


def test_another_teacher_is_another_run(tmp_path):
    """A run that was stopped, or is complete, is not continued with a teacher that says other things."""
    recipe = QUICK.but(epochs=1)
    torch.manual_seed(0)
    first, second = (nn.Sequential(nn.Linear(4, 3)) for _ in range(2))
    train(nested_mlp(weights=None), (examples(), examples(seed=5)), recipe, out=tmp_path, teacher=first, quiet=True)
    for teacher in (second, None):
        with pytest.raises(nl.RunError, match="teacher"):
            train(
                nested_mlp(weights=None),
                (examples(), examples(seed=5)),
                recipe,
                out=tmp_path,
                teacher=teacher,
                quiet=True,
            )


def test_a_teacher_in_train_mode_is_asked_in_eval_mode_and_left_as_it_was():
    nested, teacher = nested_norms(weights=None).train(), norms_module(seed=3).train()
    before = {name: own.clone() for name, own in teacher.state_dict().items()}
    x, y = images().tensors
    elbo_terms(nested, (x, y), dataset_size=N, teacher=teacher)
    assert teacher.training
    assert same_tensors(teacher.state_dict(), before)
