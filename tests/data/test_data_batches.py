"""Batches: what they hold, that any of them can be made again, and that augmentation does what it says."""

from itertools import product

import pytest
import torch
from data_files import some_bytes
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from nestling.data import Batches, DatasetBatches, Split
from nestling.errors import ArgumentError, ShapeError

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)


def pictures(number=11, size=8, channels=3):
    inputs = torch.from_numpy(some_bytes(number, channels, size, size))
    return Split(inputs, torch.arange(number))


def batches(split=None, batch_size=4, **options):
    return Batches(split or pictures(), batch_size, MEAN, STD, **options)


def raw(inputs):
    """The bytes of normalised inputs."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    return ((inputs * std + mean) * 255).round().to(torch.uint8)


def same(ours, theirs):
    return all(torch.equal(a, b) for pair in zip(ours, theirs, strict=True) for a, b in zip(*pair, strict=True))


def test_inputs_are_normalised_and_in_order():
    split = pictures()
    out = list(batches(split))
    assert [len(x) for x, _ in out] == [4, 4, 3]
    x = torch.cat([x for x, _ in out])
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    torch.testing.assert_close(x, (split.inputs / 255 - mean) / std)
    assert x.dtype == torch.float32
    assert torch.equal(torch.cat([y for _, y in out]), split.targets)


def test_float_inputs_keep_their_unit():
    vectors = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    ((x, _),) = Batches(Split(vectors, torch.zeros(5, 1)), 5, MEAN, STD)
    torch.testing.assert_close(x, (vectors - torch.tensor(MEAN)) / torch.tensor(STD))


def test_the_split_is_never_changed():
    split = Split(torch.rand(6, 3), torch.zeros(6, 1))
    before = split.inputs.clone()
    list(Batches(split, 6, MEAN, STD))
    assert torch.equal(split.inputs, before)


@pytest.mark.parametrize(("drop_last", "number"), [(False, 3), (True, 2)])
def test_length(drop_last, number):
    some = batches(drop_last=drop_last)
    assert len(some) == number == len(list(some))
    assert (some.dataset_size, some.batch_size, some.drop_last) == (11, 4, drop_last)


def test_a_shuffled_pass_has_every_example_once():
    some = batches(shuffle=True, seed=3)
    first = torch.cat([y for _, y in some])
    assert not torch.equal(first, torch.arange(11))
    assert torch.equal(first.sort().values, torch.arange(11))
    assert torch.equal(first, torch.cat([y for _, y in some]))
    some.set_epoch(1)
    assert not torch.equal(first, torch.cat([y for _, y in some]))
    assert not torch.equal(first, torch.cat([y for _, y in batches(shuffle=True, seed=4)]))


def test_no_global_randomness():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    ours = list(batches(shuffle=True, augment="crop_flip"))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    assert same(ours, batches(shuffle=True, augment="crop_flip"))


def noisy(x):
    """A function as a user may write it: dark spots anywhere."""
    return torch.where(torch.rand(x.shape) < 0.3, 0, x).to(x.dtype)


AUGMENTS = ["none", "crop_flip", noisy]


@given(st.integers(0, 3), st.integers(0, 5), st.integers(1, 12), st.sampled_from(AUGMENTS))
def test_a_pass_can_start_anywhere(first, epoch, batch_size, augment):
    some = batches(batch_size=batch_size, shuffle=True, augment=augment, seed=1)
    some.set_epoch(epoch)
    first = min(first, len(some))
    assert same(some.from_batch(first), list(some)[first:])


def test_a_pass_that_has_begun_keeps_its_epoch():
    some = batches(shuffle=True, augment="crop_flip")
    whole = list(some)
    begun = iter(some)
    head = next(begun)
    some.set_epoch(1)
    assert same([head, *begun], whole)


def test_every_batch_and_epoch_has_noise_of_its_own():
    same_image = pictures(1).inputs.expand(40, -1, -1, -1)
    some = batches(Split(same_image, torch.zeros(40)), 20, augment="crop_flip")
    first, second = (x for x, _ in some)
    some.set_epoch(1)
    third = next(iter(some))[0]
    assert not torch.equal(first, second)
    assert not torch.equal(first, third)


@given(st.integers(1, 4), st.booleans(), st.sampled_from(AUGMENTS))
def test_shards_make_up_the_batch(world, drop_last, augment):
    some = batches(shuffle=True, augment=augment, drop_last=drop_last)
    some.set_epoch(2)
    ranks = [list(some.shard(rank, world)) for rank in range(world)]
    joined = [tuple(map(interleaved, zip(*pieces, strict=True))) for pieces in zip(*ranks, strict=True)]
    assert same(joined, some)
    for number, (x, _) in enumerate(some):  # a part of a rank's rows is its share of that part of the batch
        half = len(x) // 2 // world * world
        assert torch.equal(interleaved([ranks[rank][number][0][: half // world] for rank in range(world)]), x[:half])


def interleaved(pieces):
    """The rows of all pieces, one of each in turn."""
    whole = pieces[0].new_empty(sum(map(len, pieces)), *pieces[0].shape[1:])
    for number, piece in enumerate(pieces):
        whole[number :: len(pieces)] = piece
    return whole


def padded_crops(image, mirrored):
    """Every crop of the image with a black border of 4, by brute force."""
    channels, height, width = image.shape
    canvas = torch.zeros(channels, height + 8, width + 8, dtype=image.dtype)
    canvas[:, 4 : 4 + height, 4 : 4 + width] = image
    for top, left in product(range(9), range(9)):
        crop = canvas[:, top : top + height, left : left + width]
        yield from [crop.flip(2)] if mirrored is True else [crop] if mirrored is False else [crop, crop.flip(2)]


@pytest.mark.parametrize(("augment", "mirrored"), [("crop", False), ("crop_flip", None)])
def test_each_crop_is_one_of_all_possible(augment, mirrored):
    split = pictures(30)
    ((x, _),) = batches(split, 30, augment=augment)
    seen = set()
    for image, moved in zip(split.inputs, raw(x), strict=True):
        places = [place for place, crop in enumerate(padded_crops(image, mirrored)) if torch.equal(crop, moved)]
        assert places
        seen.add(places[0])
    assert len(seen) > 15


def test_crops_and_mirrors_are_uniform():
    spot = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
    spot[..., 6, 5] = 255
    number = 16200
    ((x, _),) = batches(Split(spot.expand(number, -1, -1, -1), torch.zeros(number)), number, augment="crop_flip")
    where = raw(x)[:, 0].flatten(1).argmax(1)
    assert set((where % 16).tolist()) == set(range(1, 10)) | set(range(6, 15))  # column 5 + 4 - left, and 15 less that
    rows = torch.bincount(where // 16)
    rows = rows[rows > 0].double()
    assert len(rows) == 9
    assert float(((rows - number / 9) ** 2 / (number / 9)).sum()) < 26.1  # chi square, 8 degrees, p = .001


def test_flip_mirrors_about_half():
    split = pictures(200)
    ((x, _),) = batches(split, 200, augment="flip")
    moved = raw(x)
    mirrored = [torch.equal(a.flip(2), b) for a, b in zip(split.inputs, moved, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(split.inputs, moved, strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert 70 < sum(mirrored) < 130


def test_masks_move_with_their_image():
    images = torch.from_numpy(some_bytes(20, 1, 8, 8))
    masks = torch.stack([images[:, 0], 255 - images[:, 0]], dim=1)
    some = Batches(Split(images, masks), 20, (0.0,), (1.0,), augment="crop_flip", shuffle=True)
    ((x, y),) = some
    pixels = (x * 255).round().to(torch.uint8)[:, 0]
    assert torch.equal(y[:, 0], pixels)
    assert y.shape == (20, 2, 8, 8)


def test_a_grader_is_taken_at_random():
    masks = torch.arange(4, dtype=torch.uint8).view(1, 4, 1, 1).expand(400, 4, 8, 8)
    split = Split(torch.from_numpy(some_bytes(400, 1, 8, 8)), masks)
    some = Batches(split, 400, (0.0,), (1.0,), grader="random")
    ((_, y),) = some
    assert y.shape == (400, 8, 8)
    assert y.dtype == torch.int64
    assert torch.equal(y.amin((1, 2)), y.amax((1, 2)))
    assert (torch.bincount(y[:, 0, 0]) > 60).all()
    shards = [next(iter(some.shard(rank, 2)))[1] for rank in (0, 1)]
    assert torch.equal(interleaved(shards), y)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"augment": "zoom"},
        {"grader": "first"},
        {"grader": "random"},
        {"seed": -1},
        {"split": Split(torch.zeros(4, 3), torch.zeros(4)), "augment": "flip"},
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(ArgumentError):
        batches(**options)


def test_wrong_calls_are_refused():
    some = batches()
    for call in (
        lambda: some.set_epoch(-1),
        lambda: some.from_batch(4),
        lambda: some.shard(2, 2),
        lambda: some.shard(0, 5),
    ):
        with pytest.raises(ArgumentError):
            call()


def test_a_users_loader():
    loader = DataLoader(TensorDataset(torch.randn(10, 2), torch.arange(10)), batch_size=4, shuffle=True)
    some = DatasetBatches(loader, seed=1)
    state = torch.get_rng_state()
    whole = list(some)
    assert torch.equal(state, torch.get_rng_state())
    assert (len(some), some.dataset_size, some.batch_size, some.drop_last) == (3, 10, 4, False)
    assert torch.equal(torch.cat([y for _, y in whole]).sort().values, torch.arange(10))
    torch.manual_seed(9)
    assert same(some.from_batch(1), whole[1:])
    some.set_epoch(1)
    assert not same(some, whole)


def test_a_loader_without_batches_is_refused():
    with pytest.raises(ArgumentError):
        DatasetBatches(DataLoader(TensorDataset(torch.randn(3, 2)), batch_size=None))


def test_a_function_has_the_images_as_they_are_stored():
    seen = []
    some = batches(augment=lambda x: seen.append(x) or x.flip(3))
    first, second = (next(iter(b))[0] for b in (some, batches()))
    assert torch.equal(seen[0], pictures(11).inputs[:4])
    assert torch.equal(first, second.flip(3))


def test_a_function_leaves_global_randomness_alone_and_repeats():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    ours = list(batches(shuffle=True, augment=noisy))
    assert torch.equal(before, torch.get_rng_state())
    assert same(ours, batches(shuffle=True, augment=noisy))
    assert not same(ours, batches(shuffle=True, augment=noisy, seed=1))


def test_a_function_moves_masks_with_their_images():
    images = pictures(6).inputs
    split = Split(images, images[:, :1].clone())
    turned = Batches(split, 6, (0.0,) * 3, (1.0,) * 3, augment=lambda x, y: (x.flip(2), y.flip(2)))
    ((x, y),) = turned
    torch.testing.assert_close(x, images.flip(2) / 255)
    assert torch.equal(y, images[:, :1].flip(2))


@pytest.mark.parametrize("wrong", [lambda x: x / 255, lambda x: x[:, :, 1:], lambda x: None, lambda x: (x, x)])
def test_a_function_that_returns_something_else_is_refused(wrong):
    with pytest.raises(ShapeError, match=r"augment: got a function that returns .*, but it must be one that returns"):
        next(iter(batches(augment=wrong)))
