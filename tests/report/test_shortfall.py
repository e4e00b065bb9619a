"""Whether a smaller network is as good as the best one, in view of how many examples they were compared on."""

import math
from types import SimpleNamespace

import pytest
import torch

from nestling.reading import Cut
from nestling.report.page.metrics import QUALITIES, SIZES
from nestling.report.page.networks import Choice, Network
from nestling.report.page.shortfall import Shortfall, paired_error
from nestling.report.page.tradeoff import small_answer
from nestling.running import Cost

ACCURACY, RMSE = QUALITIES[1], QUALITIES[2]


def right(count, *wrong):
    """Flags of ``count`` examples, of which those in some ranges are wrong."""
    flags = torch.ones(count, dtype=torch.bool)
    for start, end in wrong:
        flags[start:end] = False
    return flags


def choice(*flags, key="accuracy"):
    """Networks of growing cost that are right on these examples."""
    networks = []
    for number, own in enumerate(flags, 1):
        cost = Cost(number * 100, number * 1000, number * 400)
        is_accuracy = isinstance(own, torch.Tensor)
        scores = {key: float(own.double().mean()) if is_accuracy else own}
        measured = SimpleNamespace(known=SimpleNamespace(right=own)) if is_accuracy else None
        networks.append(
            Network(f"cut {number}", Cut((("a", number),)), number / len(flags), cost, "", scores, measured)
        )
    return Choice(tuple(networks), SIZES[0])


def test_the_error_of_a_difference_is_that_of_mcnemars_counts():
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(400, generator=generator) < 0.9
    second = torch.where(torch.rand(400, generator=generator) < 0.9, first, ~first)
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    variance = (only_first + only_second) / 400 - ((only_first - only_second) / 400) ** 2
    assert paired_error(first, second) == pytest.approx(math.sqrt(variance / 400))
    assert paired_error(first, first) == 0


def test_the_error_is_that_of_repeated_samples():
    """The difference's spread over many samples of the same two networks."""
    generator = torch.Generator().manual_seed(1)
    kinds = torch.rand(4000, 300, generator=generator)
    first, second = kinds < 0.92, (kinds < 0.85) | ((kinds > 0.92) & (kinds < 0.95))  # 7 % and 3 % that differ
    spread = float((first.double().mean(1) - second.double().mean(1)).std())
    errors = [paired_error(a, b) for a, b in zip(first[:200], second[:200], strict=True)]
    assert sum(errors) / 200 == pytest.approx(spread, rel=0.05)


def test_few_examples_cannot_tell_a_loss_of_two_points():
    best, other = right(100, (0, 10)), right(100, (5, 17))  # 5 and 7 on which only one is right
    found = choice(right(100, (0, 40)), other, best)
    assert found.first == 1
    assert found.shortfall(1).may_be_chance
    answer = small_answer(found)
    assert "67% of the multiply-adds: accuracy 88.0%, 2.0 ± 3.5 points worse than the best network." in answer
    assert "With 100 test examples, that may be chance." in answer
    assert "The next smaller one, at 33%, is 30.0 ± 4.6 points worse than the best." in answer


def test_many_examples_can():
    found = choice(right(10_000, (500, 1700)), right(10_000, (0, 1000)))
    assert found.shortfall(0).value == pytest.approx(0.02)
    assert not found.shortfall(0).is_small
    assert found.first == 1
    assert small_answer(found).startswith("No smaller network is good enough: the whole one has accuracy 90.0%.")


def test_a_small_loss_is_allowed_even_if_it_is_certain():
    found = choice(right(10_000, (0, 1090)), right(10_000, (0, 1000)))
    assert not found.shortfall(0).may_be_chance
    assert found.first == 0
    assert (
        small_answer(found)
        == "To 50% of the multiply-adds: accuracy 89.1%, 0.9 ± 0.1 points worse than the best network."
    )


def test_a_loss_that_is_written_as_one_point_is_small():
    assert Shortfall(ACCURACY, 0.9, 0.0104, 0.002, 10_000).is_small
    assert not Shortfall(ACCURACY, 0.9, 0.0106, 0.002, 10_000).is_small


def test_the_best_need_not_be_the_whole_network():
    found = choice(right(1000, (0, 300)), right(1000, (0, 100)), right(1000, (0, 150)))
    assert (found.best, found.first) == (1, 1)
    assert small_answer(found).startswith("To 67% of the multiply-adds: accuracy 90.0%, the best of all.")


def test_other_scores_have_no_error():
    found = choice(0.509, 0.505, 0.5, key="rmse")
    assert found.metric is RMSE
    assert (found.best, found.first) == (2, 0)
    assert small_answer(found) == "To 33% of the multiply-adds: RMSE 0.509, 1.8% worse than the best network."
    assert not Shortfall(RMSE, 0.5, 0.011).is_small


def test_networks_without_scores():
    found = choice(None, None)
    assert (found.best, found.first) == (None, 1)
    assert "none of them scored" in small_answer(found)
