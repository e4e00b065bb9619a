"""Splits: nothing in two places, classes in proportion, patients whole, and the same again for the same seed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nestling.data import load
from nestling.data.parts import Part, Raw
from nestling.data.split import Split
from nestling.data.splitting import with_test, with_validation
from nestling.errors import ArgumentError


def numbered(labels, groups=None):
    """A set whose inputs are the numbers of its examples."""
    split = Split(torch.arange(len(labels)).float()[:, None], torch.as_tensor(labels))
    return Part(split, None if groups is None else torch.as_tensor(groups))


def raw(part, name="train", task="classification"):
    return Raw("made", task, ("a", "b", "c"), "none", {name: part})


def examples(part):
    return part.split.inputs[:, 0].long().tolist()


@given(st.lists(st.integers(0, 2), min_size=10, max_size=80), st.floats(0.05, 0.9), st.integers(0, 5))
def test_validation_is_in_proportion_and_disjoint(labels, fraction, seed):
    parts = with_validation(raw(numbered(labels)), fraction, seed).parts
    train, validation = examples(parts["train"]), examples(parts["validation"])
    assert sorted(train + validation) == list(range(len(labels)))
    for label in set(labels):
        of_class = labels.count(label)
        taken = sum(labels[place] == label for place in validation)
        share = of_class * max(1, round(fraction * len(labels))) / len(labels)
        assert abs(taken - share) < 1 or taken == of_class - 1
        assert taken < of_class
    again = with_validation(raw(numbered(labels)), fraction, seed).parts
    assert examples(again["validation"]) == validation


def test_a_number_of_examples_is_kept_exactly():
    labels = [0] * 50 + [1] * 30 + [2] * 20
    parts = with_validation(raw(numbered(labels)), 10, 0).parts
    assert torch.bincount(parts["validation"].split.targets).tolist() == [5, 3, 2]


def test_the_seed_matters_for_validation_and_not_for_test():
    whole = raw(numbered([0, 1] * 50), "whole")
    test = [examples(with_validation(with_test(whole), 0.2, seed).parts["test"]) for seed in (0, 1)]
    validation = [examples(with_validation(with_test(whole), 0.2, seed).parts["validation"]) for seed in (0, 1)]
    assert test[0] == test[1]
    assert len(test[0]) == 20
    assert validation[0] != validation[1]
    assert not set(test[0]) & set(validation[0])


@given(st.lists(st.integers(0, 6), min_size=12, max_size=60), st.integers(0, 3))
def test_patients_are_never_separated(patients, seed):
    if len(set(patients)) < 3:
        return
    part = numbered([0] * len(patients), patients)
    parts = with_validation(with_test(raw(part, "whole", "segmentation")), 0.1, seed).parts
    homes = [{patients[place] for place in examples(part)} for part in parts.values()]
    assert sum(len(home) for home in homes) == len(set(patients)) == len(set().union(*homes))
    assert sum(len(examples(part)) for part in parts.values()) == len(patients)


def test_a_validation_part_of_its_own_is_kept():
    own = Raw("made", "classification", ("a", "b"), "none", {"train": numbered([0, 1]), "validation": numbered([1, 0])})
    assert with_validation(own, 0.5, 0).parts is own.parts


@pytest.mark.parametrize("validation", [-0.1, 1.0, 1.5, 100, True, "some", float("nan")])
def test_wrong_fractions_are_refused(validation):
    with pytest.raises(ArgumentError, match="validation"):
        with_validation(raw(numbered([0, 1] * 50)), validation, 0)


def rows_of(split):
    return {(row.numpy().tobytes(), int(label)) for row, label in zip(split.inputs, split.targets, strict=True)}


def test_digits_are_all_there():
    from sklearn.datasets import load_digits

    bunch = load_digits()
    data = load("digits")
    assert sum(len(split) for split in data.splits.values()) == len(bunch.target)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 1294, "validation": 144, "test": 359}
    pixels = torch.cat([split.inputs for split in data.splits.values()])
    assert pixels.dtype == torch.uint8
    assert data.input_shape == (1, 8, 8)
    levels = (pixels.double() * 16 / 255).round()
    ours = np.sort(levels.flatten(1).numpy() @ (17.0 ** np.arange(-32, 32)))
    theirs = np.sort(bunch.data @ (17.0 ** np.arange(-32, 32)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    assert (data.num_outputs, data.task, data.classes[3]) == (10, "classification", "3")


def test_held_out_classes_are_nowhere_else():
    data, whole = load("digits", hold_out=(8, 9)), load("digits", validation=0)
    assert data.num_outputs == 8
    assert data.classes == tuple("01234567")
    assert set(data.held_out.targets.tolist()) == {8, 9}
    counts = sum(torch.bincount(split.targets, minlength=10) for split in whole.splits.values())
    assert len(data.held_out) == int(counts[8:].sum())
    kept = sum(torch.bincount(data.split(name).targets, minlength=8) for name in ("train", "validation", "test"))
    assert kept.tolist() == counts[:8].tolist()


def test_held_out_in_the_middle_are_renumbered():
    data, whole = load("digits", hold_out=[3], validation=0), load("digits", validation=0)
    assert data.classes == tuple("012456789")
    names = [data.classes[label] for label in data.train.targets]
    by_pixels = {
        row.numpy().tobytes(): int(label)
        for split in whole.splits.values()
        for row, label in zip(split.inputs, split.targets, strict=True)
    }
    assert names == [str(by_pixels[row.numpy().tobytes()]) for row in data.train.inputs]


@pytest.mark.parametrize("classes", [(10,), (-1,), tuple(range(10))])
def test_wrong_classes_are_refused(classes):
    with pytest.raises(ArgumentError, match="hold_out"):
        load("digits", hold_out=classes)


def test_the_splits_do_not_depend_on_which_are_asked_for():
    whole = load("digits")
    for name in ("train", "validation", "test"):
        alone = load("digits", splits=(name,))
        assert list(alone.splits) == [name]
        assert rows_of(alone.split(name)) == rows_of(whole.split(name))
        assert alone.mean == whole.mean


def test_a_split_shows_its_shapes():
    split = Split(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.long))
    assert repr(split) == "Split(inputs (3, 1, 2, 2) torch.uint8, targets (3,) torch.int64)"
