"""The page of the results: figures in its text stand in its tables, and its pictures are drawn by the command."""

import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "experiments"))
import pictures
import summary

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
FIGURE = re.compile(r"(?<![\w/.-])\d+\.\d+(?![\w.])")


def test_no_figure_of_the_text_is_missing_from_the_tables():
    lines = PAGE.read_text().splitlines()
    tables = {own for line in lines if line.startswith("|") for own in FIGURE.findall(line.replace("+", " "))}
    text = {own for line in lines if not line.startswith(("|", "<!--", "!")) for own in FIGURE.findall(line)}
    assert len(tables) > 100
    assert text <= tables


def test_the_pictures_are_those_that_the_command_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "IMAGES", tmp_path)
    pictures.main()
    drawn = {path.name for path in tmp_path.iterdir()}
    named = set(re.findall(r"images/(results-[\w-]+\.svg)", PAGE.read_text()))
    assert named <= drawn == {path.name for path in (PAGE.parent / "images").glob("results-*")}


def test_margins_are_differences_of_means():
    assert summary.margins([1.0, 2.5], [2.0, 2.25], 2) == "-1.00, +0.25"
    rows = [{"rows": {width: {"ece": value} for width in summary.WIDTHS}} for value in (1.0, 4.0)]
    assert summary.at_widths(rows, "ece") == [2.5] * 4


def test_cpu_time_is_per_seed_and_only_where_all_rows_have_it():
    rows = [{"seed": 0, "seconds": 10.0}, {"seed": 0, "seconds": 20.0}, {"seed": 1, "seconds": 50.0}]
    assert summary.line("a", "b", "c", rows, "d")[-3:] == ["2", "`d`", "40"]
    assert summary.line("a", "b", "c", [*rows, {"seed": 1}], "d")[-1] == "not kept"
