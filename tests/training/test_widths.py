"""Drawn cuts against the distribution they are said to have, cut by cut."""

import itertools
from collections import Counter

import pytest
import torch
from scipy import stats
from small_networks import normal
from torch import nn

import nestling as nl
from nestling.training.widths import draw_cut

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
    learned = sum(draw.log_prob.requires_grad for draw in draws)
    assert stats.binomtest(learned, NUM_DRAWS, (1 - sandwich) * (1 - explore)).pvalue > 1e-4
    found = Counter(tuple(draw.cut.as_dict().values()) for draw in draws)
    chances = distribution(nested, explore, coupled, sandwich)
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


def test_explored_cuts_have_no_gradient(nested):
    for coupled in (0.0, 1.0):
        log_prob = draw_cut(nested, explore=1.0, coupled=coupled).log_prob
        assert not log_prob.requires_grad
        assert float(log_prob) == 0


def test_the_extremes_have_no_gradient(nested):
    draws = [draw_cut(nested, sandwich=1.0) for _ in range(30)]
    assert {tuple(draw.cut.as_dict().values()) for draw in draws} == {(1, 1), (4, 3)}
    assert not any(draw.log_prob.requires_grad or float(draw.log_prob) for draw in draws)


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
