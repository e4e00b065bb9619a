"""Tables: what stands where, and the figures of a network at its widths against the library's own functions."""

import json
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import nn

import nestling as nl
from nestling.reading import cut_names, full_cut
from nestling.report import WidthRow, curve_table, score_widths, text_table, widths_table
from nestling.tables import thousands


def test_words_stand_left_and_numbers_right():
    table = text_table(["name", "number"], [["a", "1.5"], ["longer", "-12.25"]])
    assert table.splitlines() == [
        "name    number",
        "--------------",
        "a          1.5",
        "longer  -12.25",
    ]


def test_names_are_words_however_they_begin():
    assert text_table(["name", "of"], [["0.w", "5"], ["0", "10"]], names=1).splitlines()[2:] == ["0.w    5", "0     10"]


def test_a_column_whose_first_cell_is_empty_is_one_of_words():
    assert text_table(["a", "note"], [["x", ""], ["y", "z"]]).splitlines()[3] == "y  z"


def test_table_without_rows_is_its_header():
    assert text_table(["a", "bc"], []).splitlines() == ["a  bc", "-----"]


def test_wide_header_and_empty_cells():
    lines = text_table(["a long header", "b"], [["x", ""], ["", "y"]]).splitlines()
    assert lines[0] == "a long header  b"
    assert [line.split() for line in lines[2:]] == [["x"], ["y"]]


def test_lines_have_no_space_behind_them():
    table = text_table(["a", "b"], [["x", "y"], ["long word", "z"], ["x", "longer word"]])
    assert all(line == line.rstrip() for line in table.splitlines())


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (512, "512"),
        (999, "999"),
        (1000, "1k"),
        (8249, "8.25k"),
        (99_600, "99.6k"),
        (1_300_000, "1.3M"),
        (9_756_426, "9.76M"),
        (2_000_000_000, "2G"),
    ],
)
def test_thousands(number, text):
    assert thousands(number) == text


@pytest.fixture(scope="module")
def nested():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    return nl.nest(network, torch.randn(2, 4), num_blocks=4, num_always=1).eval()


def test_a_cut_is_named_as_it_was_asked_for_and_fractions_of_one_network_together(nested):
    names = cut_names(nested.groups, [0.01, 0.3, 0.5, 1.0, 0.5])
    assert list(names.values()) == ["0.01, 0.3", "0.5", "1"]


def test_a_cut_of_different_widths_is_named_by_its_blocks(nested):
    first, second = (group.name for group in nested.groups.free)
    cut = nl.Cut(((first, 4), (second, 1)))
    assert cut_names(nested.groups, [cut]) == {cut: "5 of 8 blocks"}
    assert cut.share_of(full_cut(nested.groups)) == 0.625


@pytest.fixture
def batches(monkeypatch):
    monkeypatch.setattr(import_module("nestling.running.cost"), "MEASURED_SECONDS", 0.0)
    noise = torch.Generator().manual_seed(1)
    return [(torch.randn(20, 4, generator=noise), torch.randint(3, (20,), generator=noise)) for _ in range(2)]


def test_rows_are_what_evaluate_and_cost_say(nested, batches):
    strange = [torch.randn(10, 4) + 3]
    cuts = [0.25, 1.0]
    rows = score_widths(nested, batches, cuts, ood=strange, samples=2)
    assert [(row.cut, row.kept) for row in rows] == [("0.25", 0.25), ("1", 1.0)]
    for cut, row in zip(cuts, rows, strict=True):
        expected = nl.evaluate(nested, batches, cut=cut, ood=strange, samples=2)
        assert row.scores.to_dict() == expected.to_dict()
        assert row.calibrated is None
        price = nl.cost(nested, cut)
        assert (row.cost.params, row.cost.macs, row.cost.bytes) == (price.params, price.macs, price.bytes)
        assert row.cost.latency_ms > 0


def test_a_cut_keeps_the_same_share_in_every_table(batches):
    """Groups of 4 and of 3 blocks, at 0.25: 2 of 7 blocks, in the table of a search as in that of an evaluation."""
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 3))
    uneven = nl.nest(network, torch.randn(2, 4), num_blocks=4, num_always=1, weights=None).eval()
    curve = nl.search(uneven, batches, "params", strategy="uniform")
    searched = {line.split()[1]: line.split()[0] for line in curve_table(curve).splitlines()[2:]}
    scored = {
        line.split()[2]: line.split()[:2]
        for line in widths_table(score_widths(uneven, batches, [0.25, 1.0], samples=0)).splitlines()[2:4]
    }
    assert list(scored.values()) == [["0.25", "28.6%"], ["1", "100.0%"]]
    assert len(searched) > 1
    assert {params: kept for params, (_, kept) in scored.items()}.items() <= searched.items()


def test_calibrated_scores_stand_beside_the_plain_ones(nested, batches):
    calibration = nl.calibrate(nested, batches, cut=0.5, samples=2)
    rows = score_widths(nested, batches, [0.5, 1.0], samples=2, calibrations=[calibration])
    expected = nl.evaluate(nested, batches, cut=0.5, samples=2, calibration=calibration)
    assert rows[0].calibrated.to_dict() == expected.to_dict()
    assert rows[1].calibrated is None
    lines = widths_table(rows).splitlines()
    assert "ECE % calibrated" in lines[0]
    assert f"{100 * expected.ece:.2f}" in lines[2]
    assert " - " in f"{lines[3]} "


def test_table_has_a_column_for_what_was_measured(nested, batches):
    rows = score_widths(nested, batches, [0.5], samples=0)
    header, _, line, *_ = widths_table(rows).splitlines()
    assert "accuracy %" in header
    assert "NLL" in header
    assert not {"OOD", "RMSE", "Dice", "calibrated"} & set(header.split())
    assert line.split()[:3] == ["0.5", "50.0%", str(rows[0].cost.params)]
    assert f"{100 * rows[0].scores.accuracy:.2f}" in line.split()
    strange = score_widths(nested, batches, [0.5], samples=0, ood=[torch.randn(10, 4)])
    header, _, line, *_ = widths_table(strange).splitlines()
    assert "OOD AUPR %" in header
    assert f"{100 * strange[0].scores.aupr:.2f}" in line.split()


def test_regression_has_no_accuracy(nested, batches):
    targets = [(x, torch.randn(len(x), 3)) for x, _ in batches]
    rows = score_widths(nested, targets, [1.0], samples=0, likelihood="gaussian")
    header, _, line, *_ = widths_table(rows).splitlines()
    assert "accuracy" not in header
    assert f"{rows[0].scores.rmse:.4f}" in line.split()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.45678, "0.4568"),
        (-1e-9, "0.0000"),
        (999.5, "999.5000"),
        (-35412.6, "-35,413"),
        (1.5e38, "1.500e+38"),
    ],
)
def test_figures_in_any_unit(nested, batches, value, text):
    (row,) = score_widths(nested, batches, [1.0])
    table = widths_table([replace(row, scores=replace(row.scores, nll=value, bounds={"nll": (0.0, 2 * value)}))])
    assert f" {text} ±{text}" in table


def test_a_row_goes_through_json(nested, batches):
    (row,) = score_widths(nested, batches, [0.5], samples=0)
    saved = json.loads(json.dumps(row.to_dict(), allow_nan=False))
    assert (saved["cut"], saved["kept"]) == ("0.5", 0.5)
    assert saved["cost"]["params"] == row.cost.params
    assert saved["scores"]["accuracy"] == row.scores.accuracy
    assert "calibrated" not in saved
    both = WidthRow(row.cut, row.kept, row.cost, row.scores, row.scores)
    assert both.to_dict()["calibrated"] == both.to_dict()["scores"]
