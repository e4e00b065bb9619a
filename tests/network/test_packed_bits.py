"""Packed planes against a slow writer of single bits, and the codes that fewer pairs give."""

import math
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.errors import DtypeError, RangeError, ShapeError
from nestling.running.packed_bits import num_bytes, pack, unpack
from nestling.running.quantiser import codes, initial_log_tau

PAIRS = (1, 2, 3, 4)
EACH_PAIRS = pytest.mark.parametrize("num_pairs", PAIRS)
EACH_LAYOUT = pytest.mark.parametrize("nested", [True, False])
FEWER = settings(max_examples=50)
SHAPES = st.lists(st.integers(0, 9), max_size=4)


def written(values: list[int], num_pairs: int, nested: bool) -> list[int]:
    """The bytes, one bit after the other: planes of full bytes, lowest bit first."""
    if nested:
        planes = [[int(value < 0) for value in values]]
        planes += [[int(abs(value) >= pair) for value in values] for pair in range(1, num_pairs + 1)]
    else:
        planes = [
            [(value + num_pairs) // 2**place % 2 for value in values]
            for place in range({1: 2, 2: 3, 3: 3, 4: 4}[num_pairs])
        ]
    data = []
    for plane in planes:
        for start in range(0, len(plane), 8):
            data.append(sum(bit * 2**place for place, bit in enumerate(plane[start : start + 8])))
    return data


def drawn(shape, num_pairs, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-num_pairs, num_pairs + 1, shape, generator=generator, dtype=torch.int8)


# Round trips


@EACH_PAIRS
@EACH_LAYOUT
@FEWER
@given(shape=SHAPES, seed=st.integers(0, 99))
def test_data_is_what_a_writer_of_bits_writes_and_reads_back(num_pairs, nested, shape, seed):
    given_codes = drawn(shape, num_pairs, seed)
    data = pack(given_codes, num_pairs, nested=nested)
    assert data.dtype == torch.uint8
    assert data.tolist() == written(given_codes.flatten().tolist(), num_pairs, nested)
    found = unpack(data, shape, num_pairs, nested=nested)
    assert found.dtype == torch.int8
    assert torch.equal(found, given_codes)


@EACH_PAIRS
@EACH_LAYOUT
def test_every_code_in_every_place_comes_back(num_pairs, nested):
    for length in range(1, 18):
        for code in range(-num_pairs, num_pairs + 1):
            for place in range(length):
                alone = torch.zeros(length, dtype=torch.int8)
                alone[place] = code
                assert torch.equal(
                    unpack(pack(alone, num_pairs, nested=nested), (length,), num_pairs, nested=nested), alone
                )


@FEWER
@given(size=st.integers(0, 70), seed=st.integers(0, 99))
def test_the_beginning_of_the_data_is_that_of_fewer_pairs(size, seed):
    weight = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    log_tau = initial_log_tau(weight)
    whole = pack(codes(weight, log_tau))
    for num_pairs in PAIRS:
        fewer = codes(weight, log_tau, num_pairs)
        prefix = whole[: num_bytes(size, num_pairs)]
        assert torch.equal(prefix, pack(fewer, num_pairs))
        assert torch.equal(unpack(prefix, (size,), num_pairs), fewer)
        assert torch.equal(unpack(whole, (size,), num_pairs), fewer)


def test_a_pair_refines_only_the_outermost_level():
    """+-1 becomes +-1 or +-2, then +-2 becomes +-2 or +-3, and so on; all other codes stay."""
    weight = torch.linspace(-1, 1, 5001)
    log_tau = initial_log_tau(weight)
    for fewer, more in ((1, 2), (2, 3), (3, 4)):
        before, after = codes(weight, log_tau, fewer), codes(weight, log_tau, more)
        moved = before != after
        assert moved.any()
        assert (before[moved].abs() == fewer).all()
        assert torch.equal(after[moved], before[moved].sign() * more)


@EACH_LAYOUT
def test_codes_of_any_kind_and_layout(nested):
    base = drawn((6, 5), 4, 0)
    data = pack(base, nested=nested)
    for dtype in (torch.int16, torch.int32, torch.int64):
        assert torch.equal(pack(base.to(dtype), nested=nested), data)
    turned = base.t()
    assert not turned.is_contiguous()
    assert torch.equal(unpack(pack(turned, nested=nested), (5, 6), nested=nested), turned)
    assert torch.equal(unpack(data.repeat_interleave(2)[::2], base.shape, nested=nested), base), "strided data"
    assert unpack(pack(base[0, 0], nested=nested), (), nested=nested).tolist() == base[0, 0].tolist()


@EACH_LAYOUT
def test_what_is_unpacked_is_its_own(nested):
    data = pack(drawn((50,), 4, 1), nested=nested)
    before = data.clone()
    found = unpack(data, (50,), nested=nested)
    found.zero_()
    assert torch.equal(data, before)


# Sizes


@pytest.mark.parametrize(("nested", "bits"), [(True, (2, 3, 4, 5)), (False, (2, 3, 3, 4))])
def test_bits_a_weight(nested, bits):
    for size in (0, 1, 7, 8, 9, 1000, 4099):
        for num_pairs, expected in zip(PAIRS, bits, strict=True):
            data = pack(drawn((size,), num_pairs, size), num_pairs, nested=nested)
            assert len(data) == num_bytes(size, num_pairs, nested=nested) == expected * math.ceil(size / 8)


def test_the_smallest_set_takes_a_fourteenth_of_float32():
    for size in range(64, 5000):
        assert 14 * num_bytes(size, 1) <= 4 * size
        assert num_bytes(size) <= math.ceil(5 * size / 8) + 4


# What is refused


@EACH_PAIRS
@EACH_LAYOUT
@pytest.mark.parametrize("size", [1, 8, 100])
def test_data_that_does_not_end_with_a_plane_is_refused(num_pairs, nested, size):
    data = torch.full((1000,), 255, dtype=torch.uint8)
    data[: num_bytes(size, num_pairs, nested=nested)] = pack(drawn((size,), num_pairs, 0), num_pairs, nested=nested)
    more = range(num_pairs, 5) if nested else [num_pairs]
    whole = {num_bytes(size, pairs, nested=nested) for pairs in more}
    for length in range(max(whole) + 2):
        if length in whole:
            unpack(data[:length], (size,), num_pairs, nested=nested)
        else:
            with pytest.raises(ShapeError, match=rf"data: got shape \({length},\), but it must be one axis of \d+"):
                unpack(data[:length], (size,), num_pairs, nested=nested)


@EACH_PAIRS
@EACH_LAYOUT
@pytest.mark.parametrize("size", [5, 8, 13])
def test_bits_that_no_codes_have_are_refused(num_pairs, nested, size):
    """Any bit of the data is turned; what still is the data of some codes reads as them, and all else is an error."""
    data = pack(drawn((size,), num_pairs, size), num_pairs, nested=nested)
    accepted = 0
    for place in range(8 * len(data)):
        turned = data.clone()
        turned[place // 8] ^= 1 << place % 8
        with suppress(RangeError):
            found = unpack(turned, (size,), num_pairs, nested=nested)
            assert torch.equal(pack(found, num_pairs, nested=nested), turned)
            accepted += 1
    padding = 8 * len(data) - (num_pairs + 1 if nested else {1: 2, 2: 3, 3: 3, 4: 4}[num_pairs]) * size
    used = 8 * len(data) - padding
    assert accepted <= used
    if nested or num_pairs == 4:
        assert accepted < used


@EACH_LAYOUT
def test_foreign_data_is_refused(nested):
    noise = torch.randint(256, (num_bytes(800, nested=nested),), generator=torch.Generator().manual_seed(0))
    with pytest.raises(RangeError, match="data: got a"):
        unpack(noise.to(torch.uint8), (800,), nested=nested)


CODES, DATA = torch.tensor([1, -2, 0], dtype=torch.int8), torch.zeros(5, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pack(CODES, 1), RangeError, "codes: got values from -2 to 1, but it must be between -1 and 1"),
        (lambda: pack(torch.tensor([257])), RangeError, "codes: got values from 257"),
        (lambda: pack(torch.tensor([-128], dtype=torch.int8)), RangeError, "codes: got values from -128"),
        (lambda: pack(CODES.float()), DtypeError, "codes"),
        (lambda: pack([1, 2]), DtypeError, "codes: got a list"),
        (lambda: pack(CODES, 5), RangeError, "num_pairs: got 5"),
        (lambda: unpack(DATA, (3,), 0), RangeError, "num_pairs: got 0"),
        (lambda: unpack(DATA.long(), (3,)), DtypeError, "data: got a tensor of torch.int64"),
        (lambda: unpack(b"12345", (3,)), DtypeError, "data: got a bytes"),
        (lambda: unpack(DATA[None], (3,)), ShapeError, r"data: got shape \(1, 5\)"),
        (lambda: unpack(DATA, (9,)), ShapeError, "10 bytes for 9 weights with 4 pairs. The data was cut short"),
        (lambda: unpack(DATA, (9,), 1), ShapeError, "4 or 6 or 8 or 10 bytes for 9 weights with 1 pair"),
        (lambda: unpack(DATA, (10**9, 10**9)), ShapeError, "data"),
        (lambda: unpack(DATA, (-3, -1)), ShapeError, r"shape: got \(-3, -1\)"),
        (lambda: unpack(DATA, (1.5, 2)), ShapeError, "shape"),
        (lambda: unpack(DATA, 3), ShapeError, "shape: got 3"),
        (lambda: num_bytes(-1), RangeError, "num_weights: got -1"),
        (lambda: num_bytes(2.5), DtypeError, "num_weights: got 2.5"),
        (lambda: num_bytes(8, 7), RangeError, "num_pairs: got 7"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert type(caught.value) is error
    assert caught.value.advice.endswith(".")
