"""The demonstration, with an epoch and two widths: its table, its picture and the run it leaves."""

import re
from importlib import import_module

import pytest
from PIL import Image

import nestling as nl
from nestling import demo
from nestling.errors import RunError

WIDTHS = (0.5, 1.0)


def shrink(monkeypatch):
    monkeypatch.setattr(demo, "WIDTHS", WIDTHS)
    monkeypatch.setattr(demo, "NETWORK_WIDTH", 1 / 16)
    monkeypatch.setattr(demo, "NUM_BLOCKS", 4)
    monkeypatch.setattr(demo, "RECIPE", demo.RECIPE.but(epochs=1, cuts=WIDTHS, samples=2))
    monkeypatch.setattr(import_module("nestling.running.cost"), "MEASURED_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The folder and the text of a demonstration, made once."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        out = tmp_path_factory.mktemp("demo") / "new" / "folder"
        return out, demo.demo(out)


def rows_of(text):
    """The cells of the table, without the measured milliseconds."""
    lines = text.split("\n\n")[0].splitlines()
    cells = [re.split(r"\s{2,}", line.strip()) for line in (lines[0], *lines[2:])]
    return [[*row[:3], *row[4:]] for row in cells]


def test_table_has_a_row_for_each_width_and_a_column_for_each_method(shown):
    header, *rows = rows_of(shown[1])
    assert [row[0] for row in rows] == ["0.5", "1"]
    methods = ["BN3", "FN3", "alone"]
    assert header[3:] == [f"{what} {own}" for what in ("accuracy", "ECE", "AUPR") for own in methods]
    assert all(len(row) == len(header) for row in rows)
    assert all(0 <= float(cell) <= 100 for row in rows for cell in row[3:])


def test_narrower_is_smaller(shown):
    _, half, full = rows_of(shown[1])
    network = nl.models.build("vgg11", width=1 / 16, in_channels=1, num_classes=8)
    number = sum(own.numel() for own in network.parameters()) / 1000
    assert float(full[1].removesuffix("k")) == pytest.approx(number, rel=0.01)
    assert float(half[1].removesuffix("k")) < 0.4 * number


def test_figures_are_those_of_the_saved_network(shown):
    out, text = shown
    data = nl.data.load("cluttered_digits", hold_out=demo.HELD_OUT)
    strange = data.batches("held_out", 500)
    scores = nl.evaluate(nl.load(out), data.batches("test", 500), cut=list(WIDTHS), ood=strange)
    for row, own in zip(rows_of(text)[1:], scores, strict=True):
        assert [row[3], row[6], row[9]] == [f"{100 * value:.1f}" for value in (own.accuracy, own.ece, own.aupr)]


def test_picture_is_a_png_that_the_text_names(shown):
    out, text = shown
    assert str(out / "curves.png") in text
    with Image.open(out / "curves.png") as image:
        image.load()
        assert image.format == "PNG"
        assert min(image.size) > 300


def test_page_has_the_figures_of_the_table(shown):
    out, text = shown
    assert str(out / "report.html") in text
    page = (out / "report.html").read_text()
    for label in ("FN3: nested, plain", "one network per size"):
        assert label in page
    for row in rows_of(text)[1:]:
        assert f'"accuracy":"{row[3]}%"' in page
        assert f'"ece":"{row[6]}%"' in page


def test_folder_is_a_run_that_other_commands_take(shown):
    out, text = shown
    assert f"nestling evaluate {out}" in text
    run = nl.open_run(out)
    assert run.recipe.cuts == WIDTHS
    assert run.data["loaded_with"]["hold_out"] == [8, 9]
    assert [run.calibration(width).num_examples for width in WIDTHS] == [348, 348]


def test_given_again_it_shows_the_same(shown):
    out, text = shown
    before = (out / "model.safetensors").read_bytes()
    assert rows_of(demo.demo(out)) == rows_of(text)
    assert (out / "model.safetensors").read_bytes() == before


def test_another_seed_is_another_run(shown):
    with pytest.raises(RunError, match="holds another run"):
        demo.demo(shown[0], seed=1)


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunError, match="can't be made"):
        demo.demo(tmp_path / "taken")
