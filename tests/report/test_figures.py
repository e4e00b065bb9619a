"""Pictures: files that can be opened, as many panels as asked for, and nothing left behind."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from nestling.report import Series, draw_curves

LABELS = {"size": "multiply-adds", "title": "a title"}


def series(number, panels, sizes=(100, 1000, 20_000)):
    return [
        Series(f"line {line}", sizes, {panel: [own + line for own in range(len(sizes))] for panel in panels})
        for line in range(number)
    ]


def drawn(path, number, panels, **options):
    draw_curves(path, series(number, panels, **options), panels, **LABELS)
    return path


def test_a_picture_that_can_be_opened(tmp_path):
    path = drawn(tmp_path / "curves.png", 2, ["accuracy", "ECE"])
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        colours = np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)
    assert len(colours) > 20
    assert [own.name for own in tmp_path.iterdir()] == ["curves.png"]


def test_each_panel_has_its_room(tmp_path):
    widths = []
    for number in (1, 2):
        with Image.open(drawn(tmp_path / "a.png", 1, [f"panel {own}" for own in range(number)])) as image:
            widths.append(image.width)
    assert widths[1] == 2 * widths[0]


def test_more_lines_than_colours(tmp_path):
    drawn(tmp_path / "a.png", 7, ["accuracy"])


def test_a_single_size(tmp_path):
    drawn(tmp_path / "a.png", 2, ["accuracy"], sizes=(100,))


@pytest.mark.parametrize(("suffix", "begins"), [(".svg", b"<?xml"), (".pdf", b"%PDF"), ("", b"\x89PNG")])
def test_the_suffix_says_the_format(tmp_path, suffix, begins):
    assert drawn(tmp_path / f"curves{suffix}", 1, ["accuracy"]).read_bytes().startswith(begins)


def test_a_picture_is_replaced(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"old")
    assert drawn(path, 1, ["accuracy"]).read_bytes().startswith(b"\x89PNG")


def test_labels_and_titles_are_in_the_picture(tmp_path):
    text = drawn(tmp_path / "a.svg", 2, ["the first", "the second"]).read_text()
    for words in ("the first", "the second", "multiply-adds", "a title", "line 0", "line 1"):
        assert f"<!-- {words} -->" in text


def test_a_panel_without_values_leaves_no_file(tmp_path):
    with pytest.raises(KeyError):
        draw_curves(tmp_path / "a.png", series(1, ["one"]), ["two"], **LABELS)
    assert not list(tmp_path.iterdir())


def test_drawing_leaves_no_figure_open(tmp_path):
    drawn(tmp_path / "a.png", 1, ["accuracy"])
    assert plt.get_fignums() == []
