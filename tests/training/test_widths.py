"""Drawn cuts against the distribution they are said to have, cut by cut."""

import itertools
import math
from collections import Counter

import pytest
import torch
from scipy import stats
from small_networks import normal
from torch import nn

import nestling as nl
from nestling.reading.cut import Cut
from nestling.training.widths import anchor_cuts, draw_between, draw_cut

NUM_DRAWS = 1500


@pytest.fixture(scope="module")
def nested():
    """Two groups of 4 and of 3 blocks, so that following at the same fraction has to round."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 2))
    made = nl.nest(module, normal(2, 3), weights=None, num_blocks=4, num_always=1)
    assert [group.num_blocks for group in made.groups.free] == [4, 3]
    for seed, order in enumerate(made.orders.values()):
        order.logits.data = normal(*order.logits.shape, seed=seed) + 0.5
    return made


def probs(nested, explored):
    """P(width) of each group, by its definition: the chain, or the same for every width."""
    tables = []
    for group, order in zip(nested.groups.free, nested.orders.values(), strict=True):
        keep = torch.sigmoid(order.logits.detach()).tolist()
        chances, reached = [], 1.0
        for chance in [*keep, 0.0]:
            chances.append(reached * (1 - chance))
            reached *= chance
        number = group.num_blocks
        tables.append({w + 1: 1 / number if explored else chances[w] for w in range(number)})
    return tables


FOLLOWERS = {"first leads": {1: 1, 2: 2, 3: 2, 4: 3}, "second leads": {1: 1, 2: 3, 3: 4}}
"""round(3 w / 4) and round(4 w / 3), halves up: 0.75, 1.5, 2.25, 3 and 1.33, 2.67, 4."""


def distribution(nested, explore, coupled, sandwich):
    chances = Counter()
    for explored, share in ((True, explore), (False, 1 - explore)):
        first, second = probs(nested, explored)
        for (a, p), (b, q) in itertools.product(first.items(), second.items()):
            chances[a, b] += share * (1 - coupled) * p * q
        for a, p in first.items():
            chances[a, FOLLOWERS["first leads"][a]] += share * coupled * p / 2
        for b, q in second.items():
            chances[FOLLOWERS["second leads"][b], b] += share * coupled * q / 2
    mixed = Counter({pair: (1 - sandwich) * chance for pair, chance in chances.items()})
    mixed[1, 1] += sandwich / 2
    mixed[4, 3] += sandwich / 2
    return {pair: chance for pair, chance in mixed.items() if chance > 0}


@pytest.mark.parametrize(
    ("explore", "coupled", "sandwich"), [(0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.6, 0.5, 0.3)]
)
def test_cuts_are_as_frequent_as_they_should_be(nested, explore, coupled, sandwich):
    generator = torch.Generator().manual_seed(0)
    shares = {"explore": explore, "coupled": coupled, "sandwich": sandwich}
    draws = [draw_cut(nested, **shares, generator=generator) for _ in range(NUM_DRAWS)]
    learned = sum(draw.log_prob is not None and draw.log_prob.requires_grad for draw in draws)
    assert stats.binomtest(learned, NUM_DRAWS, (1 - sandwich) * (1 - explore)).pvalue > 1e-4
    check_frequencies(draws, distribution(nested, explore, coupled, sandwich))


def check_frequencies(draws, chances):
    """A chi-square test of the drawn cuts against the chance of each."""
    found = Counter(tuple(draw.cut.as_dict().values()) for draw in draws)
    assert sum(chances.values()) == pytest.approx(1)
    assert found.keys() <= chances.keys()
    often = [pair for pair, chance in chances.items() if chance * NUM_DRAWS >= 5]
    observed = [found[pair] for pair in often]
    expected = [chances[pair] * NUM_DRAWS for pair in often]
    scale = sum(observed) / sum(expected)
    assert stats.chisquare(observed, [scale * own for own in expected]).pvalue > 1e-4


def gradients(nested, log_prob):
    logits = [order.logits for order in nested.orders.values()]
    return torch.autograd.grad(log_prob, logits, allow_unused=True)


def test_log_prob_is_that_of_every_order_where_each_draws(nested):
    for _ in range(20):
        cut, log_prob = draw_cut(nested)
        torch.testing.assert_close(log_prob, nested.log_prob(cut))
        assert all(gradient is not None for gradient in gradients(nested, log_prob))


def test_log_prob_is_that_of_the_leader_where_the_others_follow(nested):
    seen = set()
    for _ in range(60):
        cut, log_prob = draw_cut(nested, coupled=1.0)
        leading = [gradient is not None for gradient in gradients(nested, log_prob)]
        assert sum(leading) == 1
        number = leading.index(True)
        width = list(cut.as_dict().values())[number]
        expected = probs(nested, False)[number][width]
        assert float(log_prob.detach().exp()) == pytest.approx(expected, rel=1e-5)
        seen.add((number, width))
    assert {number for number, _ in seen} == {0, 1}


def test_explored_cuts_have_no_log_prob(nested):
    for coupled in (0.0, 1.0):
        assert draw_cut(nested, explore=1.0, coupled=coupled).log_prob is None


def test_the_extremes_have_no_log_prob(nested):
    draws = [draw_cut(nested, sandwich=1.0) for _ in range(30)]
    assert {tuple(draw.cut.as_dict().values()) for draw in draws} == {(1, 1), (4, 3)}
    assert all(draw.log_prob is None for draw in draws)


def test_draws_follow_the_generator_and_leave_torchs_state_alone(nested):
    before = torch.get_rng_state()
    first, second = (
        [draw_cut(nested, explore=0.5, coupled=0.5, generator=generator).cut for _ in range(10)]
        for generator in (torch.Generator().manual_seed(3), torch.Generator().manual_seed(3))
    )
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_that_are_coupled_keep_what_is_always_kept():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    made = nl.nest(module, normal(2, 3), weights=None, num_blocks=8, num_always=3, order="uniform")
    widths = {width for _ in range(60) for width in draw_cut(made, coupled=1.0).cut.as_dict().values()}
    assert widths == set(range(3, 9))


def cut_of(nested, widths):
    return Cut(tuple((group.name, width) for group, width in zip(nested.groups.free, widths, strict=True)))


def between(nested, least, explore, coupled):
    """P(cut) of ``draw_between``: one fraction, uniform from the lowest on, or a width for each, no less."""
    sizes, chances = [group.num_blocks for group in nested.groups.free], Counter()
    low = min(width / size for width, size in zip(least, sizes, strict=True))
    steps = {(width + 0.5) / size for size in sizes for width in range(size)}
    edges = [low, *sorted(step for step in steps if low < step < 1), 1.0]
    for left, right in itertools.pairwise(edges):
        middle = (left + right) / 2
        pair = tuple(max(w, int(middle * size + 0.5)) for w, size in zip(least, sizes, strict=True))
        chances[pair] += coupled * (right - left) / (1 - low)
    apart = 1 - coupled
    for widths in itertools.product(*(range(w, size + 1) for w, size in zip(least, sizes, strict=True))):
        chances[widths] += apart * explore / math.prod(n + 1 - w for w, n in zip(least, sizes, strict=True))
    first, second = probs(nested, explored=False)
    for (a, p), (b, q) in itertools.product(first.items(), second.items()):
        chances[max(a, least[0]), max(b, least[1])] += apart * (1 - explore) * p * q
    return {pair: chance for pair, chance in chances.items() if chance > 0}


@pytest.mark.parametrize(("explore", "coupled"), [(0.5, 1.0), (1.0, 0.0), (0.0, 0.0), (0.6, 0.5)])
@pytest.mark.parametrize("least", [(1, 1), (2, 2), (1, 3)], ids=str)
def test_cuts_between_two_are_as_frequent_as_they_should_be(nested, least, explore, coupled):
    generator, state = torch.Generator().manual_seed(0), torch.get_rng_state()
    shares = {"explore": explore, "coupled": coupled, "generator": generator}
    draws = [draw_between(nested, cut_of(nested, least), **shares) for _ in range(NUM_DRAWS)]
    assert torch.equal(torch.get_rng_state(), state)
    learned = sum(draw.log_prob is not None for draw in draws)
    assert stats.binomtest(learned, NUM_DRAWS, (1 - coupled) * (1 - explore)).pvalue > 1e-4
    assert all(a >= least[0] and b >= least[1] for a, b in (draw.cut.as_dict().values() for draw in draws))
    check_frequencies(draws, between(nested, least, explore, coupled))


def test_fractions_between_two_are_uniform(nested):
    """From 2 of 4 blocks and 2 of 3: (2, 2) below 5/8, (3, 2) below 5/6, (3, 3) below 7/8, (4, 3) above."""
    chances = between(nested, (2, 2), 0.0, 1.0)
    parts = [1 / 4, 2 / 3, 3 / 4, 1.0]
    shares = [parts[0], *(b - a for a, b in itertools.pairwise(parts))]
    assert chances == pytest.approx(dict(zip([(2, 2), (3, 2), (3, 3), (4, 3)], shares, strict=True)))


def scripted(nested, monkeypatch, widths):
    for order, width in zip(nested.orders.values(), widths, strict=True):
        monkeypatch.setattr(order, "sample", lambda _shape, _generator, width=width: torch.tensor(width))


@pytest.mark.parametrize("widths", [(1, 1), (1, 3), (3, 1), (4, 2)], ids=str)
def test_log_prob_is_that_of_the_widths_before_they_were_raised_to_the_least(nested, monkeypatch, widths):
    scripted(nested, monkeypatch, widths)
    cut, log_prob = draw_between(nested, cut_of(nested, (2, 2)), coupled=0.0)
    assert tuple(cut.as_dict().values()) == tuple(max(2, width) for width in widths)
    expected = math.prod(table[width] for table, width in zip(probs(nested, explored=False), widths, strict=True))
    assert float(log_prob.detach().exp()) == pytest.approx(expected, rel=1e-5)
    assert all(gradient is not None for gradient in gradients(nested, log_prob))


def test_orders_that_are_fixed_draw_whatever_the_share_to_explore():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    made = nl.nest(module, normal(2, 3), weights=None, num_blocks=4, num_always=1, order="geometric")
    (order,) = made.orders.values()
    chances = order.log_probs().exp().tolist()
    least = Cut(tuple((group.name, 2) for group in made.groups.free))
    generator = torch.Generator().manual_seed(0)
    draws = [draw_between(made, least, explore=1.0, coupled=0.0, generator=generator) for _ in range(NUM_DRAWS)]
    assert all(draw.log_prob is None for draw in draws)
    check_frequencies(draws, {(2,): chances[0] + chances[1], (3,): chances[2], (4,): chances[3]})
    assert abs(chances[0] + chances[1] - 1 / 3) > 0.05  # which uniform widths would not pass for


def test_draws_between_two_follow_the_generator(nested):
    first, second = (
        [draw_between(nested, cut_of(nested, (1, 1)), explore=0.5, coupled=0.5, generator=own).cut for _ in range(10)]
        for own in (torch.Generator().manual_seed(3), torch.Generator().manual_seed(3))
    )
    assert first == second
    assert len(set(first)) > 1


def test_the_cuts_that_fractions_name_are_given_once_and_narrowest_first(nested):
    """0.01 rounds to what is always kept, as 0.25 does, and 0.9 to all."""
    found = anchor_cuts(nested.groups, (1.0, 0.5, 0.01, 0.25, 0.9, 0.5))
    assert found == [cut_of(nested, widths) for widths in ((1, 1), (2, 2), (4, 3))]
    assert anchor_cuts(nested.groups, (1.0,)) == [cut_of(nested, (4, 3))]
