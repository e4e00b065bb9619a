"""Texts as rows of bytes: every byte of a row has the byte after it as its target."""

import pytest
import torch

import nestling as nl
from nestling.data import DataError

LINES = ["one", "two é", "three"]
STREAM = "one\ntwo é\nthree\n".encode()


def rows_of(split):
    return [bytes(row.tolist()) for row in split.inputs["tokens"]], [bytes(row.tolist()) for row in split.targets]


def test_a_text_file_becomes_rows_with_the_next_bytes(tmp_path):
    text = tmp_path / "poem.txt"
    text.write_bytes(bytes(range(256)) * 4)
    data = nl.data.load(text, max_length=50, validation=0.25)
    assert (data.task, data.name, data.num_outputs, data.input_shape) == ("language", "poem", 256, (50,))
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 12, "validation": 4, "test": 4}
    seen = []
    for split in data.splits.values():
        for row, after in zip(*rows_of(split), strict=True):
            assert row[1:] == after[:-1]
            assert after[-1] == (row[-1] + 1) % 256
            seen.append(row)
    stream = bytes(range(256)) * 4
    assert sorted(seen) == sorted(stream[start : start + 50] for start in range(0, 1000, 50))


def test_the_last_row_ends_before_the_last_byte(tmp_path):
    for number, rows in ((60, 5), (61, 6), (62, 6)):
        (tmp_path / "short.txt").write_bytes(b"x" * (number - 1))  # and an end of line
        data = nl.data.load(tmp_path / "short.txt", max_length=10, validation=0)
        assert sum(map(len, data.splits.values())) == rows


def test_a_table_is_one_text_of_its_lines(tmp_path):
    table = tmp_path / "lines.tsv"
    table.write_text("label\ttext\n" + "".join(f"{number}\t{line}\n" for number, line in enumerate(LINES)))
    data = nl.data.load(table, tokenizer="bytes", max_length=2, validation=0)
    rows = [row for split in data.splits.values() for row in rows_of(split)[0]]
    assert sorted(rows) == sorted(STREAM[start : start + 2] for start in range(0, len(STREAM) - 2, 2))


def test_a_run_trains_on_a_text_by_its_path_and_loads_it_again(tmp_path):
    (tmp_path / "text.txt").write_text("abcdefgh" * 200)
    torch.manual_seed(0)
    net = nl.models.build("gpt", context=16, layers=1, stream=16, heads=2)
    data = nl.data.load(tmp_path / "text.txt", max_length=16)
    nested = nl.nest(net, data.split("train").subset(torch.arange(2)).inputs, weights=None, num_blocks=2, num_always=1)
    recipe = nl.Recipe(epochs=12, batch_size=8, lr=0.01, cuts=(0.5, 1.0))
    run = nl.train(nested, data, recipe, out=tmp_path / "run", quiet=True)
    scores = nl.evaluate(run.nested, data.batches("test", 8), cut=1.0)
    assert scores.nll < 0.3
    assert (scores.iou, scores.count) == (None, len(data.split("test")))
    again = nl.data.load(**data.loaded_with)
    assert again.fingerprint == data.fingerprint
    text = nl.generate(nl.load(tmp_path / "run"), "abc", length=30, temperature=0, draft=0.5)
    assert text.text == ("abcdefgh" * 5)[:33]


def test_errors(tmp_path):
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(DataError, match="has 6 bytes of text, but a row needs 129"):
        nl.data.load(tmp_path / "short.txt")
    with pytest.raises(nl.ArgumentError, match="tokenizer: got a tokenizer for a file that is one text"):
        nl.data.load(tmp_path / "short.txt", tokenizer=lambda texts: {})
    (tmp_path / "t.csv").write_text("label,text\n0,a\n")
    with pytest.raises(nl.ArgumentError, match="tokenizer: got 'words', but it must be a tokenizer, or 'bytes'"):
        nl.data.load(tmp_path / "t.csv", tokenizer="words")
    with pytest.raises(nl.ArgumentError, match="tokenizer: got one, but it must be none for digits"):
        nl.data.load("digits", tokenizer="bytes")
