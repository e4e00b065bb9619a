"""Bad input: each gets the right child of NestlingError, which says what was given, what is needed and what to do."""

import math

import pytest
import torch
from torch import nn

import nestling
from nestling.distributions import (
    AdditiveGaussian,
    BernoulliChain,
    BernoulliGate,
    BetaBernoulli,
    ConcreteGate,
    DependentBetaBernoulli,
    Downhill,
    GaussianDropoutGate,
    GaussianGate,
    Geometric,
    LogNormalGate,
    MultiplicativeGaussian,
    Uniform,
    bernoulli_kl,
    bn3_refitted_regulariser,
    bn3_regulariser,
    gaussian_kl,
    hierarchical_kl,
    kumaraswamy_beta_kl,
    log_uniform_kl,
    molchanov_kl,
    to_log_sigma2,
    truncated_log_normal_kl,
)
from nestling.errors import ArgumentError, DtypeError, NestlingError, NonFiniteError, RangeError, ShapeError

LOGITS = torch.zeros(3)
NAN, INF = math.nan, math.inf


def refused(error: type[ArgumentError], name: str, given: str, call) -> None:
    """``call`` raises exactly ``error`` about ``name``, shows ``given``, and says what is needed and what to do."""
    with pytest.raises(NestlingError) as caught:
        call()
    found = caught.value
    assert type(found) is error
    assert isinstance(found, ValueError)
    assert found.name == name
    assert given in str(found.given)
    assert len(found.needed) > 5
    assert found.advice.endswith(".")
    assert str(found) == f"{name}: got {found.given}, but it must be {found.needed}. {found.advice}"


BAD_TEMPERATURES = [
    (0, RangeError, "0"),
    (0.0, RangeError, "0.0"),
    (-1.5, RangeError, "-1.5"),
    (NAN, RangeError, "nan"),
    (INF, RangeError, "inf"),
    (-INF, RangeError, "-inf"),
    (True, DtypeError, "True"),
    ("warm", DtypeError, "'warm'"),
    (None, DtypeError, "None"),
    (torch.tensor(0.5), DtypeError, "tensor(0.5000)"),
]


@pytest.mark.parametrize(("value", "error", "given"), BAD_TEMPERATURES, ids=[str(t[0]) for t in BAD_TEMPERATURES])
@pytest.mark.parametrize(
    "make",
    [
        lambda t: Downhill(LOGITS, temperature=t),
        lambda t: BetaBernoulli(3, temperature=t),
        lambda t: ConcreteGate(3, temperature=t),
    ],
    ids=["downhill", "beta_bernoulli", "concrete"],
)
def test_a_temperature_is_a_positive_finite_number_also_when_assigned(make, value, error, given):
    refused(error, "temperature", given, lambda: make(value))
    made = make(0.7)
    refused(error, "temperature", given, lambda: setattr(made, "temperature", value))
    assert made.temperature == 0.7
    made.temperature = 2
    assert made.temperature == 2.0


@pytest.mark.parametrize(
    ("probs", "error", "given"),
    [
        (torch.tensor([0.5, 1.2]), RangeError, "from 0.5 to 1.2"),
        (torch.tensor([-0.1, 0.5]), RangeError, "from -0.1 to 0.5"),
        (torch.tensor([0.5, NAN]), NonFiniteError, "1 of 2 entries"),
        (torch.tensor([1, 0]), DtypeError, "torch.int64"),
        (torch.tensor([True]), DtypeError, "torch.bool"),
        ([0.5, 0.5], DtypeError, "a list"),
        (0.5, DtypeError, "a float"),
        (torch.tensor(0.5), ShapeError, "a single number"),
    ],
)
def test_probabilities_of_a_chain(probs, error, given):
    refused(error, "probs", given, lambda: BernoulliChain(probs))


def test_a_chain_takes_probs_or_logits():
    refused(ArgumentError, "probs, logits", "neither", BernoulliChain)
    refused(ArgumentError, "probs, logits", "both", lambda: BernoulliChain(LOGITS, logits=LOGITS))


@pytest.mark.parametrize("make", [Downhill, lambda x: BernoulliChain(logits=x)], ids=["downhill", "chain"])
@pytest.mark.parametrize(
    ("logits", "error", "given"),
    [
        (torch.tensor([0.0, NAN, INF]), NonFiniteError, "2 of 3 entries"),
        (torch.tensor([1, 2]), DtypeError, "torch.int64"),
        (torch.zeros(2, dtype=torch.complex64), DtypeError, "torch.complex64"),
        ([0.0], DtypeError, "a list"),
        (torch.tensor(3.0), ShapeError, "a single number"),
    ],
)
def test_logits(make, logits, error, given):
    refused(error, "logits", given, lambda: make(logits))


def test_a_single_logit_is_told_how_to_become_a_tensor():
    with pytest.raises(ShapeError, match=r"torch\.full\(\(num_blocks - num_always,\), 3\)"):
        Downhill(torch.tensor(3.0))


ORDERS = {
    "uniform": lambda n: Uniform(4, num_always=n),
    "geometric": lambda n: Geometric(4, 0.5, num_always=n),
    "downhill": lambda n: Downhill(LOGITS, num_always=n),
    "chain": lambda n: BernoulliChain(torch.full((3,), 0.5), num_always=n),
}


@pytest.mark.parametrize("make", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize(
    ("num_always", "error"),
    [
        (0, RangeError),
        (-5, RangeError),
        (1.5, DtypeError),
        (2.0, DtypeError),
        (True, DtypeError),
        ("2", DtypeError),
        (None, DtypeError),
    ],
)
def test_num_always_is_a_positive_whole_number(make, num_always, error):
    """Named as what the caller passed, also where the number of blocks is worked out from it."""
    refused(error, "num_always", repr(num_always), lambda: make(num_always))


def test_num_always_is_at_most_the_number_of_blocks():
    for make in (ORDERS["uniform"], ORDERS["geometric"]):
        refused(RangeError, "num_always", "5", lambda make=make: make(5))
    with pytest.raises(RangeError, match=r"between 1 and the number of blocks \(4\)"):
        Uniform(4, num_always=5)
    assert Uniform(4, num_always=4).num_widths == 1


@pytest.mark.parametrize(
    ("num_blocks", "error"),
    [(0, RangeError), (-1, RangeError), (4.0, DtypeError), ("4", DtypeError), (True, DtypeError)],
)
def test_num_blocks_is_a_positive_whole_number(num_blocks, error):
    refused(error, "num_blocks", repr(num_blocks), lambda: Uniform(num_blocks))
    refused(error, "num_blocks", repr(num_blocks), lambda: Geometric(num_blocks, 0.5))


@pytest.mark.parametrize("make", [lambda d: Uniform(4, dtype=d), lambda d: Geometric(4, 0.5, dtype=d)])
def test_an_order_cannot_hold_its_log_probabilities_in_integers(make):
    """Unchecked, log(1/4) = -1.39 would be stored as -1, in silence."""
    refused(DtypeError, "dtype", "torch.int64", lambda: make(torch.int64))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (1.5, RangeError),
        (-0.1, RangeError),
        (NAN, RangeError),
        (INF, RangeError),
        ("0.5", DtypeError),
        (True, DtypeError),
    ],
)
def test_a_probability_given_as_a_number(value, error):
    given = repr(value)
    refused(error, "keep_prob", given, lambda: Geometric(4, value))
    for gate in (BernoulliGate, GaussianDropoutGate, ConcreteGate):
        refused(error, "drop_prob", given, lambda gate=gate: gate(3, value))
    refused(error, "prior_prob", given, lambda: bernoulli_kl(LOGITS, value))


def test_a_drop_probability_leaves_something():
    for gate in (BernoulliGate, GaussianDropoutGate):
        refused(RangeError, "drop_prob", "1.0", lambda gate=gate: gate(3, 1.0))
    for end in (0.0, 1.0):
        refused(RangeError, "drop_prob", str(end), lambda end=end: ConcreteGate(3, end))
        refused(RangeError, "prior_prob", str(end), lambda end=end: bernoulli_kl(LOGITS, end))


GATES = {
    "bernoulli": BernoulliGate,
    "gaussian_dropout": GaussianDropoutGate,
    "concrete": ConcreteGate,
    "beta_bernoulli": BetaBernoulli,
    "dependent": lambda n: DependentBetaBernoulli(BetaBernoulli(n)),
    "gaussian": GaussianGate,
    "log_normal": LogNormalGate,
}


@pytest.mark.parametrize("make", GATES.values(), ids=GATES)
@pytest.mark.parametrize(
    ("num_units", "error"),
    [(0, RangeError), (-3, RangeError), (2.5, DtypeError), ("3", DtypeError), (True, DtypeError)],
)
def test_num_units_is_a_positive_whole_number(make, num_units, error):
    refused(error, "num_units", repr(num_units), lambda: make(num_units))


@pytest.mark.parametrize("make", GATES.values(), ids=GATES)
@pytest.mark.parametrize(
    ("features", "error", "given"),
    [
        (torch.zeros(2, 5), ShapeError, "(2, 5)"),
        (torch.zeros(2, 1), ShapeError, "(2, 1)"),
        (torch.zeros(3), ShapeError, "(3,)"),
        (torch.zeros(2, 3, 4, 4), ShapeError, "(2, 3, 4, 4)"),
        (torch.zeros(2, 3, dtype=torch.long), DtypeError, "torch.int64"),
        ([[0.0, 0.0, 0.0]], DtypeError, "a list"),
    ],
    ids=["wide", "narrow", "no batch", "maps", "integers", "a list"],
)
def test_features_are_a_row_of_units_for_each_example(make, features, error, given):
    for gate in (make(3), make(3).eval()):
        refused(error, "features", given, lambda gate=gate: gate.sample(features))


@pytest.mark.parametrize("value", [NAN, INF])
def test_gates_refuse_to_start_from_nan(value):
    refused(RangeError, "raw_a", repr(value), lambda: BetaBernoulli(3, raw_a=value))
    refused(RangeError, "log_std", repr(value), lambda: LogNormalGate(3, log_std=value))
    refused(NonFiniteError, "log_sigma2", "3 of 3 entries", lambda: GaussianGate(3, log_sigma2=value))
    for bad in (0.0, -1e-4, value):
        refused(RangeError, "concentration", repr(bad), lambda bad=bad: BetaBernoulli(3, concentration=bad))


@pytest.mark.parametrize("kind", [MultiplicativeGaussian, AdditiveGaussian])
def test_weights(kind):
    scale = "log_alpha" if kind is MultiplicativeGaussian else "log_sigma2"
    good = torch.ones(3)
    refused(NonFiniteError, "mean", "1 of 3 entries", lambda: kind(torch.tensor([1.0, NAN, 0.0]), good))
    refused(NonFiniteError, scale, "1 of 1 entries", lambda: kind(good, torch.tensor(-INF)))
    refused(DtypeError, "mean", "torch.int64", lambda: kind(torch.tensor([1, 2, 3]), good))
    refused(DtypeError, scale, "torch.int32", lambda: kind(good, torch.ones(3, dtype=torch.int32)))
    refused(DtypeError, scale, "a float", lambda: kind(good, -3.0))
    refused(ShapeError, scale, "(2,) for a mean of shape (3,)", lambda: kind(good, torch.zeros(2)))
    refused(DtypeError, "mean", "torch.int64", lambda: to_log_sigma2(torch.tensor([1]), good))


@pytest.mark.parametrize(
    ("masks", "error", "given"),
    [
        (torch.ones(3), ShapeError, "(3,)"),
        (torch.tensor(1.0), ShapeError, "()"),
        (torch.ones(4, dtype=torch.long), DtypeError, "torch.int64"),
        (torch.tensor([1.0, NAN, 0.1, 0.0]), NonFiniteError, "1 of 4"),
        ([1.0, 0.5, 0.2, 0.1], DtypeError, "a list"),
    ],
)
def test_masks_of_a_density(masks, error, given):
    refused(error, "masks", given, lambda: Downhill(LOGITS).log_density(masks))


@pytest.mark.parametrize(
    "function",
    [log_uniform_kl, molchanov_kl, bn3_regulariser, bn3_refitted_regulariser, hierarchical_kl],
    ids=lambda f: f.__name__,
)
def test_divergences_of_log_alpha_take_real_tensors(function):
    """A nan passes through, as in any arithmetic: to look at every element would cost as much as the divergence."""
    refused(DtypeError, "log_alpha", "torch.int64", lambda: function(torch.tensor([1, 2])))
    refused(DtypeError, "log_alpha", "a float", lambda: function(-3.0))
    assert function(torch.tensor([NAN])).isnan().all()


@pytest.mark.parametrize("bad", [0.0, -1.0, NAN, INF])
def test_numbers_of_the_other_divergences(bad):
    refused(RangeError, "prior_std", repr(bad), lambda: gaussian_kl(LOGITS, LOGITS, bad))
    refused(RangeError, "c", repr(bad), lambda: kumaraswamy_beta_kl(LOGITS + 1, LOGITS + 1, bad))
    if bad != INF:
        refused(RangeError, "high - low", repr(bad), lambda: truncated_log_normal_kl(LOGITS, LOGITS, 0.0, bad))


def test_errors_belong_to_the_library_and_to_python():
    for error in (ArgumentError, RangeError, ShapeError, DtypeError, NonFiniteError):
        assert issubclass(error, NestlingError)
        assert issubclass(error, ValueError)
        assert getattr(nestling, error.__name__) is error
    assert issubclass(DtypeError, TypeError)
    with pytest.raises(ValueError, match="temperature"):
        Downhill(nn.Parameter(LOGITS.clone()), temperature=-1)


def test_learned_chain_is_given_by_logits():
    with pytest.raises(nestling.ArgumentError, match=r"probs: got a Parameter.*logits=nn.Parameter"):
        nestling.distributions.BernoulliChain(torch.nn.Parameter(torch.full((3,), 0.5)))
