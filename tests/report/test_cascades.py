"""The lines under the table of a cascade, from figures made by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from nestling.cascade import CascadeScores, Comparison, Guarantee, Point, StageScores
from nestling.prediction import SetScores
from nestling.report import cascade_table, draw_cascade

STAGES = (
    StageScores("0.25", 0.5, 1.0, 0.75, 0.96, 100, 1.0),
    StageScores("1", 0.9, 0.25, 0.2, 0.5, 400, 3.0),
)
LINES = [Point(100.0, 0.8, (0.1, 0.2)), Point(400.0, 0.9, (0.3, 0.4))]
BESIDE = Comparison(LINES[0], tuple(LINES), (Point(100.0, 0.8), Point(400.0, 0.9)), 0.003, (0.001, 0.005))


def scores(accuracy=0.9, **options):
    own = SimpleNamespace(accuracy=accuracy, bounds={"accuracy": (0.88, 0.92)}, nll=0.25, ece=0.01)
    return CascadeScores(200, own, STAGES, 200.0, (190.0, 210.0), 400, **options)


def cascade(guarantee=None):
    names = (SimpleNamespace(name="0.25", runs=True), SimpleNamespace(name="0.5", runs=False))
    return SimpleNamespace(stages=names, guarantee=guarantee)


def test_the_table_says_what_a_cascade_comes_to():
    """Milliseconds: 1 for all and 3 for a quarter of the examples, of the 3 that the widest cut takes."""
    lines = cascade_table(cascade(), scores(), BESIDE).splitlines()
    assert lines[2].split() == ["1", "0.25", "0.5000", "100.0%", "75.0%", "96.00", "100", "1.000"]
    assert lines[5] == "Left out, since the goal is reached at less cost without it: 0.5."
    assert lines[6].startswith("accuracy 90.00 % ±2.00 of what is answered, NLL 0.2500")
    less = "0.30 ±0.20 points less than the widest cut alone"
    assert lines[7] == f"5.0% of the inputs get no answer; with these counted as wrong, the accuracy is {less}"
    assert lines[8] == "200 MACs on average, 50.0% of the widest cut's; 1.750 ms, 58.3%"
    assert len(lines) == 9


def test_where_all_is_answered_the_accuracy_is_that_of_all():
    answered = replace(scores(), stages=(STAGES[0], replace(STAGES[1], answered=0.25)))
    text = cascade_table(cascade(), answered, BESIDE)
    assert "accuracy 90.00 % ±2.00 (0.30 ±0.20 points less than the widest cut alone), NLL" in text
    assert "no answer" not in text


def test_sets_are_said_by_their_coverage():
    text = cascade_table(cascade(), scores(sets={0.9: SetScores(0.912, 1.25)}), BESIDE)
    assert "91.2% of the conformal sets for 90.0% have the right class, with 1.25 classes on average" in text


def test_a_guarantee_is_said_in_full():
    text = cascade_table(cascade(Guarantee(0.02, 0.1, 1000, 800, 9)), scores(), BESIDE)
    said = "with probability 0.9, at most 2.0% of what is answered early is wrong"
    assert text.endswith(f"{said} (9 of 800 early answers were wrong among 1,000 examples)")


def test_a_picture_has_milliseconds_where_they_are_known(tmp_path):
    draw_cascade(tmp_path / "macs.svg", BESIDE)
    assert "milliseconds" not in (tmp_path / "macs.svg").read_text()
    timed = [replace(point, ms=point.macs / 100) for point in LINES]
    alone = tuple(replace(point, ms=point.macs / 50) for point in BESIDE.alone)
    draw_cascade(tmp_path / "both.svg", replace(BESIDE, chosen=timed[0], points=tuple(timed), alone=alone))
    said = (tmp_path / "both.svg").read_text()
    assert "milliseconds on average" in said
    assert "multiply-adds on average" in said


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_drawn(tmp_path, suffix):
    draw_cascade(tmp_path / f"cascade.{suffix}", BESIDE)
    assert (tmp_path / f"cascade.{suffix}").stat().st_size > 1000
