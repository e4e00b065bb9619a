"""The curve: what fits a budget, what is said when nothing does, and files that a spreadsheet opens."""

import csv
import io
import math
from dataclasses import replace

import pytest

from forging import forgeries, read_or_refused, write_signed
from nestling.errors import ArgumentError, BudgetError, NestlingError, RunError
from nestling.network import Cut
from nestling.search import Curve, Row, Tried
from nestling.search.curve import front
from nestling.search.quality import Quality
from nestling.storage import read_json, write_json


def row(width, score, *, latency=None, log_likelihood=-0.5):
    sizes = {"params": 10 * width, "macs": 100 * width, "bytes": 40 * width}
    return Row(
        Cut((("a", width),)),
        **sizes,
        latency_ms=latency,
        cost=100.0 * width,
        score=score,
        log_likelihood=log_likelihood,
    )


def tried(cost, score, log_likelihood=-1.0):
    return Tried(Cut((("a", int(cost)),)), 3, cost, Quality(score, log_likelihood))


def curve(*rows, **options):
    return Curve(rows, (tried(1, 0.5), tried(2, 0.7)), "macs", "beam", 2, **options)


SOME = curve(row(1, 0.8), row(2, 0.9), row(3, 0.85), row(4, 0.95))


def test_the_best_within_every_budget():
    assert SOME.under(macs=400) == Cut((("a", 4),))
    assert SOME.under(macs=399) == Cut((("a", 2),))  # the third is larger and worse
    assert SOME.under(macs=1e9, bytes=79.5) == Cut((("a", 1),))
    assert SOME.under(cost=100) == Cut((("a", 1),))


def test_a_budget_may_be_a_share_of_the_whole_network():
    assert SOME.under(macs="0.5x") == SOME.under(macs=200)
    assert SOME.under(macs="1x", bytes="79.5") == SOME.under(bytes=79.5)


def test_among_equals_the_cheapest():
    same = curve(row(1, 0.8), row(2, 0.9, log_likelihood=-0.7), row(3, 0.9, log_likelihood=-0.3))
    assert same.under(macs=1e9) == Cut((("a", 2),))
    assert same.under(params=1e9) == Cut((("a", 2),))
    nearly = curve(row(1, 0.9 - 1e-9), row(2, 0.9))
    assert nearly.under(macs=1e9) == Cut((("a", 2),))


def test_among_equals_the_cheapest_in_what_the_budget_is_about():
    few = replace(row(2, 0.9), params=5)
    same = curve(row(1, 0.9), few)
    assert same.under(params=1e9) == few.cut
    assert same.under(macs=1e9) == Cut((("a", 1),))
    assert same.under(macs=1e9, params=1e9) == Cut((("a", 1),))


def test_a_budget_that_nothing_meets_names_the_smallest():
    with pytest.raises(BudgetError, match=r"macs=99, params=50; the smallest takes macs=100, params=10") as caught:
        SOME.under(macs=99, params=50)
    assert caught.value.smallest == {"macs": 100, "params": 10}
    assert isinstance(caught.value, NestlingError)


@pytest.mark.parametrize(
    "budget",
    [{}, {"latency": 3}, {"latency_ms": 3}, {"macs": "4ms"}, *({"macs": value} for value in (0, 0.5, -1, math.nan))],
)
def test_budgets_that_mean_nothing(budget):
    with pytest.raises(ArgumentError) as caught:
        SOME.under(**budget)
    assert "\n" not in str(caught.value)


def test_times_where_they_were_measured():
    timed = curve(row(1, 0.8, latency=0.5), row(2, 0.9, latency=0.8))
    assert timed.under(latency_ms=0.6) == Cut((("a", 1),))


def test_json_and_back(tmp_path):
    SOME.save(tmp_path / "curve.json")
    assert Curve.read(tmp_path / "curve.json") == SOME
    rows = list(csv.DictReader(io.StringIO((tmp_path / "curve.csv").read_text())))
    assert [int(own["macs"]) for own in rows] == [100, 200, 300, 400]
    assert [int(own["a"]) for own in rows] == [1, 2, 3, 4]
    assert [float(own["score"]) for own in rows] == [0.8, 0.9, 0.85, 0.95]


@pytest.mark.parametrize("content", [{}, {"rows": []}, {"groups": ["a"], "rows": [{"cut": 3}], "tried": []}])
def test_what_is_no_curve(tmp_path, content):
    write_json(tmp_path / "curve.json", content)
    with pytest.raises(RunError, match="is not a curve"):
        Curve.read(tmp_path / "curve.json")


@pytest.mark.parametrize(("name", "value"), [("score", "high"), ("score", "0.9"), ("params", None), ("cost", True)])
def test_a_row_with_something_else_than_a_number_is_refused_in_one_line(tmp_path, name, value):
    content = SOME.to_dict()
    content["rows"][1][name] = value
    write_json(tmp_path / "curve.json", content)
    with pytest.raises(RunError, match=f"is not a curve .*its {name} is {value!r}"):
        Curve.read(tmp_path / "curve.json")


def test_a_curve_is_one_line():
    assert repr(SOME) == "Curve(4 networks of 100 to 400 macs; 2 cuts tried by beam)"


def test_the_front():
    all_of_them = [tried(5, 0.9), tried(1, 0.5), tried(2, 0.4), tried(3, 0.5, -0.5), tried(3, 0.6), tried(4, 0.6)]
    assert [(own.cost, own.quality.score) for own in front(all_of_them)] == [(1, 0.5), (3, 0.6), (5, 0.9)]


def test_what_removing_blocks_costs():
    found = Curve(SOME.rows, (tried(1, 0.5), tried(2, 0.7)), "macs", "beam", 2).by_removed()
    assert found == [(3, 0.7, pytest.approx(0.6), pytest.approx(0.1))]


def test_every_entry_of_a_file_that_was_made_by_hand(tmp_path):
    """Refused in one line, or a curve that can be asked for a cut."""
    SOME.save(tmp_path / "curve.json")
    for place, forged in forgeries(read_json(tmp_path / "curve.json"), 2):
        write_signed(tmp_path / "curve.json", forged)
        found = read_or_refused(lambda: Curve.read(tmp_path / "curve.json").under(params=10**12), place)
        assert found is None or isinstance(found, Cut)
