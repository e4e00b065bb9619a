"""What is measured on kept outputs of cascades: proven bounds on independent draws, and what limits two cuts."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

PLACE = Path(__file__).parents[2] / "experiments" / "cascade"


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """Outputs of two cuts for three classes: the narrow one has three times the noise of the widest."""
    monkeypatch.syspath_prepend(str(PLACE))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    generator, tensors = torch.Generator().manual_seed(0), {}
    for split, number in (("validation", 400), ("test", 1000)):
        labels = torch.randint(3, (number,), generator=generator)
        tensors[f"{split} labels"] = labels
        for cut, noise in (("0.5", 1.5), ("1", 0.5)):
            logits = torch.nn.functional.one_hot(labels, 3) * 4 / noise
            tensors[f"{split} {cut}"] = (logits + 2 * torch.randn(number, 3, generator=generator))[None]
    path = tmp_path / "two.safetensors"
    save_file(tensors, path, metadata={"0.5": "25", "1": "100"})
    return path, tensors


def rows_of(name, arguments, monkeypatch):
    out = arguments[arguments.index("--out") + 1]
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    import_module(name).main()
    return [json.loads(line) for line in Path(out).read_text().splitlines()]


def test_a_proven_bound_fails_as_rarely_as_it_says(outputs, tmp_path, monkeypatch):
    path, _ = outputs
    given = [path, "--bounds", "0.2", "--deltas", "0.1", "--samples", "60", "--size", "600"]
    (row,) = rows_of("guarantee", [*given, "--out", tmp_path / "rows.jsonl"], monkeypatch)
    assert row["proven"] > 50
    assert row["true rate above"] <= 0.1 * 60 + 7  # three standard deviations above what delta allows
    assert 0 < row["mean true rate"] < 0.2
    assert 0.25 < row["mean macs_share"] < 1.25


def test_what_limits_two_cuts(outputs, tmp_path, monkeypatch):
    path, tensors = outputs
    given = [path, "--cuts", "0.5", "1", "--share", "0.6", "--out", tmp_path / "rows.jsonl"]
    alone, combined = rows_of("limits", given, monkeypatch)
    right = {cut: tensors[f"test {cut}"][0].argmax(1) == tensors["test labels"] for cut in ("0.5", "1")}
    narrow, widest = (float(own.double().mean()) for own in right.values())
    assert alone["alone"] == {"narrow": pytest.approx(narrow), "widest": pytest.approx(widest)}
    either = float((right["0.5"] | right["1"]).double().mean())
    assert alone["points lost"]["hindsight"] == pytest.approx(100 * (widest - either), abs=0.01)
    by_chance = 100 * (1 - 0.35) * (widest - narrow)  # 0.35 of the images go on, for 0.25 + 0.35 of the cost
    for lost in (alone["points lost"], combined["points lost"]):
        assert lost["hindsight"] == min(lost.values())
        assert max(lost.values()) < 0.8 * by_chance
    assert combined["second stage for all"] == pytest.approx(widest, abs=0.01)
