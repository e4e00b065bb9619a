"""The experiment with a small GPT runs to its tables, on a few texts and for an epoch."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "experiments" / "transformers"))
import generate
from rows import read


@pytest.fixture
def few_texts(tmp_path, monkeypatch):
    monkeypatch.setenv("NESTLING_DATA", str(tmp_path))
    for name in ("sst2", "ag_news"):
        (tmp_path / name).mkdir()
    phrases = [f"a film of {number} words and more" for number in range(90)]
    lines = [f"1\t{phrase} \n0\t{phrase[2:9]} " for phrase in phrases]
    for name in ("train", "dev"):
        (tmp_path / "sst2" / f"{name}.tsv").write_text("label\tsentence\n" + "\n".join(lines) + "\n")
    items = [f'"1","Item {number}","It said ""{number}"" again\\and more."' for number in range(400)]
    (tmp_path / "ag_news" / "test.csv").write_text("\n".join(items) + "\n")
    sizes = {"LAYERS": 4, "STREAM": 16, "CONTEXT": 24, "PROMPT": 6, "LENGTHS": (2, 3)}
    for constant, value in sizes.items():
        assert hasattr(generate, constant)
        monkeypatch.setattr(generate, constant, value)
    monkeypatch.setattr(generate, "RECIPE", generate.RECIPE.but(precision="float32"))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    return tmp_path


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["generate.py", *map(str, arguments)])
    generate.main()


def test_it_runs_to_its_tables(few_texts, monkeypatch, capsys):
    runs, bits, decoding = few_texts / "runs", few_texts / "bits.jsonl", few_texts / "decoding.jsonl"
    for _ in range(2):  # rows that are there are not made again
        run(monkeypatch, "run", "nested", "0.5", "--limit", 200, "--runs", runs, "--out", bits)
    nested, plain = read(bits)
    assert [nested["rows"][cut]["params"] for cut in plain["rows"]] == [of["params"] for of in plain["rows"].values()]
    assert all(2 < of["ag_news"] < 8 for of in nested["rows"].values())
    run(monkeypatch, "decode", "--runs", runs, "--rounds", 2, "--out", decoding)
    rows = read(decoding)
    assert len(rows) == 2 * (1 + 5 * (1 + 2))
    assert all(0 <= row["acceptance"] <= 1 and row["tokens_per_second"] > 0 for row in rows)
    capsys.readouterr()
    run(monkeypatch, "table", bits)
    run(monkeypatch, "table", decoding, "--temperature", 1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines] == [
        *("network", "---", "nested", "plain, each size alone", "parameters"),
        *("draft", "---", "25 % of all", "50 % of all", "75 % of all", "25 % of heads and units", "25 % of layers"),
    ]


def test_phrases_that_are_part_of_longer_ones_are_left_out(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("label\tsentence\n" + "".join(f"0\t{text} \n" for text in ("good", "a good film", "film", "bad")))
    assert generate._sentences(path) == ["a good film", "bad"]


@pytest.mark.parametrize(
    ("speed", "cell"),
    [(1.2, "1.20 (75%, pays from 54%)"), (0.5, "0.50 (75%, never pays)"), (4, "4.00 (75%, pays from 0%)")],
)
def test_a_round_pays_from_the_share_at_which_it_gives_as_many_tokens_as_it_costs(speed, cell):
    """Two proposals of which three quarters are accepted make 2.5 tokens per pass, in the time of 2.5 / speed."""
    row = {"draft_length": 2, "tokens_per_pass": 2.5, "over_plain": speed, "acceptance": 0.75}
    assert generate._decoding_cell(row) == cell
