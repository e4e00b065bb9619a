"""Texts with labels, from official tables and a user's own, and what a tokenizer makes of them."""

import pytest
import torch

from nestling.data import DamagedError, DataError, Split, load
from nestling.errors import ArgumentError, NestlingError, RangeError, ShapeError

SST2 = {
    "train.tsv": "label\tsentence\n" + '1\ta "quoted word\n0\tdull\n' * 10,
    "dev.tsv": "sentence\tlabel\nlong string of cliches\t0\nfine\t1\n",
}
NEWS = '"3","Oil rises","Prices\\up"\n"1","Talks","He said ""no"", again"\n'


def letters(texts, **options):
    """A number for each letter of up to 12, as if it were a token."""
    assert options == {}
    ids = torch.zeros(len(texts), 12, dtype=torch.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.tensor([ord(letter) for letter in text[:12]])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def written(ids):
    return ["".join(chr(number) for number in row if number) for row in ids.tolist()]


@pytest.fixture
def root(tmp_path):
    for name, files in {"sst2": SST2, "ag_news": {"test.csv": NEWS}}.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_text(content)
    return tmp_path


def test_sentences_of_glue_in_either_order_of_columns(root):
    data = load("sst2", root=root, tokenizer=letters, validation=0.2)
    assert (data.classes, data.mean, data.std, data.augment) == (("negative", "positive"), (), (), "none")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 16, "validation": 4, "test": 2}
    assert written(data.test.inputs["input_ids"]) == ["long string ", "fine"]
    assert data.test.targets.tolist() == [0, 1]
    by_label = dict(zip(data.train.targets.tolist(), written(data.train.inputs["input_ids"]), strict=True))
    assert by_label == {1: 'a "quoted wo', 0: "dull"}
    assert data.loaded_with is None


def test_news_join_title_and_description(root):
    seen = []

    def keep(texts):
        seen.extend(texts)
        return letters(texts)

    data = load("ag_news", root=root, tokenizer=keep, splits=("test",))
    assert seen == ["Oil rises Prices up", 'Talks He said "no", again']
    assert data.test.targets.tolist() == [2, 0]


def test_a_batch_is_as_long_as_its_longest_text(root):
    data = load("sst2", root=root, tokenizer=letters, splits=("test",))
    (inputs, labels), (short, _) = data.batches("test", 1)
    assert inputs["input_ids"].shape == (1, 12)
    assert labels.tolist() == [0]
    assert {name: tuple(tensor.shape) for name, tensor in short.items()} == {
        "input_ids": (1, 4),
        "attention_mask": (1, 4),
    }
    assert written(short["input_ids"]) == ["fine"]


def test_shuffled_batches_have_each_text_with_its_label(root):
    data = load("sst2", root=root, tokenizer=letters, validation=0)
    pairs = [
        pair
        for inputs, labels in data.batches("train", 3, shuffle=True, seed=3).shard(0, 1)
        for pair in zip(labels.tolist(), written(inputs["input_ids"]), strict=True)
    ]
    assert sorted(pairs) == sorted([(1, 'a "quoted wo'), (0, "dull")] * 10)
    assert pairs != sorted(pairs)


def test_ranks_share_a_batch_of_texts(root):
    data = load("sst2", root=root, tokenizer=letters, validation=0)
    whole = [labels for _, labels in data.batches("train", 4, shuffle=True)]
    shares = [data.batches("train", 4, shuffle=True).shard(rank, 2) for rank in (0, 1)]
    for both, batch in zip(zip(*shares, strict=True), whole, strict=True):
        assert torch.equal(torch.stack([labels for _, labels in both], 1).flatten(), batch)
        assert all(len(inputs["input_ids"]) == 2 for inputs, _ in both)


def test_hugging_face_tokenizers_are_told_how_to_pad(root):
    class Tokenizer:
        model_input_names = ("input_ids", "attention_mask")

        def __call__(self, texts, **options):
            self.options = options
            return letters(texts)

    tokenizer = Tokenizer()
    load("sst2", root=root, tokenizer=tokenizer, max_length=7)
    assert tokenizer.options == {
        "padding": "max_length",
        "truncation": True,
        "max_length": 7,
        "return_tensors": "pt",
    }


def test_a_table_of_ones_own(tmp_path):
    (tmp_path / "mine.csv").write_text('text,label\n"one, two",yes\nthree,no\nfour,yes\nfive,no\nsix,yes\n')
    data = load(tmp_path / "mine.csv", tokenizer=letters, validation=1)
    assert data.classes == ("no", "yes")
    texts = {}
    for split in data.splits.values():
        texts |= dict(zip(written(split.inputs["input_ids"]), split.targets.tolist(), strict=True))
    assert texts == {"one, two": 1, "three": 0, "four": 1, "five": 0, "six": 1}


def test_numbers_as_labels_keep_their_order(tmp_path):
    (tmp_path / "mine.tsv").write_text("label\ttext\n" + "".join(f"{number}\tt{number}\n" for number in (10, 9, 2) * 4))
    assert load(tmp_path / "mine.tsv", tokenizer=letters, validation=0).classes == ("2", "9", "10")


def test_held_out_classes_and_fingerprints(root):
    data = load("sst2", root=root, tokenizer=letters, hold_out=(1,), validation=0)
    assert sorted(written(data.held_out.inputs["input_ids"])) == ['a "quoted wo'] * 10 + ["fine"]
    other = load("sst2", root=root, tokenizer=lambda texts: letters([f"{text[:3]}!" for text in texts]), validation=0)
    same = load("sst2", root=root, tokenizer=letters, validation=0)
    again = load("sst2", root=root, tokenizer=letters, validation=0)
    assert same.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    "content",
    [
        "",
        "label\tsentence\n2\tno such class\n",
        "label\tsentence\tmore\n1\ta\tb\n",
        "number\tsentence\n1\ta\n",
        "label\tsentence\n1\ta\tb\n",
        "label\tsentence\n1\n",
        b"label\tsentence\n1\t\xff\xfe\n",
    ],
)
def test_damaged_official_tables(root, content):
    (root / "sst2" / "dev.tsv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DamagedError, match=r"dev\.tsv"):
        load("sst2", root=root, tokenizer=letters, splits=("test",))


@pytest.mark.parametrize("content", ["", "text,label\n", "a,b\n1,2\n", 'text,label\n"open,1\n'])
def test_damaged_tables_of_ones_own(tmp_path, content):
    (tmp_path / "mine.csv").write_text(content)
    with pytest.raises(DataError, match=r"mine\.csv"):
        load(tmp_path / "mine.csv", tokenizer=letters)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "tokenizer: got none"),
        ({"tokenizer": lambda texts: torch.zeros(len(texts), 3)}, "returns Tensor"),
        ({"tokenizer": lambda texts: {"input_ids": torch.zeros(1, 3)}}, r"input_ids torch.Size\(\[1, 3\]\)"),
        ({"tokenizer": lambda texts: {"input_ids": [[1]] * len(texts)}}, "input_ids list"),
        ({"tokenizer": letters, "augment": "flip"}, "augment"),
        ({"tokenizer": letters, "augment": lambda inputs: inputs}, "augment"),
    ],
)
def test_bad_arguments(root, options, message):
    with pytest.raises(ArgumentError, match=message):
        load("sst2", root=root, **options)


def test_a_tokenizer_for_data_without_texts(root):
    with pytest.raises(ArgumentError, match="digits, which has no texts"):
        load("digits", tokenizer=letters)
    with pytest.raises(RangeError, match="max_length"):
        load("sst2", root=root, tokenizer=letters, max_length=0)
    assert issubclass(DataError, NestlingError)


def test_tensors_of_a_split_have_a_row_for_each_target():
    with pytest.raises(ShapeError, match="2 for 3 inputs"):
        Split({"a": torch.zeros(2, 1), "b": torch.zeros(3, 1)}, torch.zeros(2))
