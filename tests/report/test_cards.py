"""What notebooks show of the library's objects: their figures, with nothing that is taken for HTML."""

import re
from dataclasses import replace

import pytest
import torch

import nestling as nl
from nestling.pruning import LayerReport


@pytest.fixture(scope="module")
def run(searched):
    return nl.open_run(searched)


def cells(card):
    """The cells of each row of a card's table, without markup."""
    rows = re.findall(r"<tr>(.*?)</tr>", card)
    return [[re.sub("<.*?>", "", cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows]


def test_nested(run):
    with run.nested.at(0.5) as nested:
        card = nested._repr_html_()
    _, *rows = cells(card)
    for row, group in zip(rows, run.nested.groups, strict=True):
        assert row[:3] == [group.name, group.kind, str(group.size)]
        if group.free:
            expected = float(run.nested.orders[group.name].expected_width().detach())
            assert row[3:] == [str(group.num_blocks), str(group.num_blocks // 2), f"{expected:.1f}"]
        else:
            assert row[5] == f"frozen: {group.frozen_because}"
    assert "50.0% of its blocks" in card
    assert "the whole network" in run.nested._repr_html_()


def test_curve(searched):
    curve = nl.Curve.read(searched / "curve.json")
    _, *rows = cells(curve._repr_html_())
    assert [row[-2] for row in rows] == [f"{row.score:.4f}" for row in curve.rows]


def test_run(run):
    _, *rows = cells(run._repr_html_())
    validation = run.log[-1]["validation"]
    assert [row[:2] for row in rows] == [[name, f"{own['accuracy']:.4f}"] for name, own in validation.items()]
    assert [row[3] for row in rows] == [f"{calibration.temperature:.3f}" for calibration in run.calibrations]
    assert nl.training.Run(**{**vars(run), "log": ()})._repr_html_()


def test_predictions(run):
    x = torch.randn(12, *run.nested.example[0][0].shape[1:])
    prediction = nl.predict(run.nested, x, samples=2, seed=0)
    card = prediction._repr_html_()
    _, *rows = cells(card)
    assert "12 examples, the first 10 shown" in card
    assert [row[1] for row in rows] == [
        f"class {int(label)}  {float(share):.1%}"
        for label, share in zip(prediction.labels[:10], prediction.confidence[:10], strict=True)
    ]
    assert [row[2] for row in rows] == [f"{float(value):.4g}" for value in prediction.total[:10]]


def test_predictions_of_numbers_and_masks():
    means, noise = torch.tensor([[[1.0], [2.0]], [[3.0], [2.0]]]), torch.zeros(2, 2, 1)
    numbers = nl.prediction.RegressionPrediction(means, noise)
    assert [row[1:3] for row in cells(numbers._repr_html_())[1:]] == [["2 ± 1.4", "2"], ["2 ± 1", "1"]]
    masks = nl.prediction.Categorical().predictive(torch.zeros(2, 3, 4, 5, 6))
    assert [row[1] for row in cells(masks._repr_html_())[1:]] == ["5 x 6 labels"] * 3


def test_names_are_text():
    network = torch.nn.Linear(2, 2)
    price = nl.Cost(4, 4, 16, 1.0)
    layers = [LayerReport("<script>", 1, 4)]
    pruned = nl.Pruned(network, "<b>", "weights", 3.0, layers, price, price, None, {})
    card = pruned._repr_html_()
    assert "<script>" not in card
    assert cells(card)[1] == ["&lt;script&gt;", "1", "4", "75.00%"]
    assert "advice &amp;" in replace(pruned, advice="advice &")._repr_html_()
