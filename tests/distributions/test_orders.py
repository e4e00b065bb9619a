"""Orders against enumeration over their widths: normalisation, moments, divergences, samples and gradients."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.autograd import gradcheck

from nestling.distributions import BernoulliChain, Downhill, Geometric, Order, Uniform, kl
from nestling.errors import DtypeError, RangeError, ShapeError

F64 = torch.float64


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def chain_table(keep: list[float], num_always: int) -> dict[int, float]:
    """Probability of each width by walking every path of the chain: 1 while kept, nothing after the first cut."""
    table = dict.fromkeys(range(num_always, num_always + len(keep) + 1), 0.0)
    for path in itertools.product((0, 1), repeat=len(keep)):
        prob, alive = 1.0, True
        for kept, p in zip(path, keep, strict=True):
            prob *= (p if kept else 1 - p) if alive else (0.0 if kept else 1.0)
            alive = alive and bool(kept)
        table[num_always + sum(path)] += prob
    return table


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


KEEP = [0.9, 0.35, 0.6, 0.8, 0.05]
LOGITS = [2.0, -1.0, 0.5, 1.7, -3.0]

# Each order with the table of its widths, worked out without the library.
CASES: list[tuple[str, Order, dict[int, float]]] = []
for num_blocks, num_always in ((1, 1), (2, 1), (5, 1), (5, 3), (6, 6)):
    free = num_blocks - num_always
    name = f"{num_blocks}-{num_always}"
    even = dict.fromkeys(range(num_always, num_blocks + 1), 1 / (free + 1))
    CASES.append((f"uniform-{name}", Uniform(num_blocks, num_always=num_always, dtype=F64), even))
    geometric = Geometric(num_blocks, 0.7, num_always=num_always, dtype=F64)
    CASES.append((f"geometric-{name}", geometric, chain_table([0.7] * free, num_always)))
    probs = torch.tensor(KEEP[:free], dtype=F64)
    CASES.append(
        (f"chain-probs-{name}", BernoulliChain(probs, num_always=num_always), chain_table(KEEP[:free], num_always))
    )
    logits = torch.tensor(LOGITS[:free], dtype=F64)
    table = chain_table([sigmoid(x) for x in LOGITS[:free]], num_always)
    CASES.append((f"chain-logits-{name}", BernoulliChain(logits=logits, num_always=num_always), table))
    CASES.append((f"downhill-{name}", Downhill(logits, num_always=num_always), table))

every_order = pytest.mark.parametrize(("order", "table"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])


@every_order
def test_an_order_is_the_table_of_its_widths(order, table):
    assert order.widths().tolist() == list(table)
    assert order.num_widths == len(table)
    assert order.log_probs().dtype == F64
    assert order.log_probs().exp().tolist() == pytest.approx(list(table.values()), abs=1e-14)
    assert order.log_probs().exp().sum().item() == pytest.approx(1, abs=1e-14)


@every_order
def test_moments_follow_from_the_table(order, table):
    keep = [sum(p for width, p in table.items() if width >= block) for block in range(1, order.num_blocks + 1)]
    assert order.keep_probs().tolist() == pytest.approx(keep, abs=1e-14)
    assert order.keep_probs()[: order.num_always].tolist() == [1.0] * order.num_always
    assert order.expected_width().item() == pytest.approx(sum(w * p for w, p in table.items()), abs=1e-13)
    entropy = -sum(p * math.log(p) for p in table.values())
    assert order.entropy().item() == pytest.approx(entropy, abs=1e-13)


@every_order
def test_log_prob_reads_the_table(order, table):
    widths = torch.tensor([list(table), list(table)[::-1]])
    expected = [[math.log(table[w]) for w in row] for row in widths.tolist()]
    assert order.log_prob(widths).tolist() == [pytest.approx(row, abs=1e-12) for row in expected]


@every_order
def test_samples_follow_the_table(order, table):
    """A chi-square test at level 1e-4: one false alarm in 10,000 new seeds, and this seed is fixed."""
    num_draws = 100_000
    widths = order.sample((num_draws,), seeded(7))
    assert widths.dtype == torch.int64
    counts = torch.bincount(widths, minlength=order.num_blocks + 1)[order.num_always :].tolist()
    assert sum(counts) == num_draws
    if len(table) > 1:
        assert stats.chisquare(counts, [num_draws * p for p in table.values()]).pvalue > 1e-4
    # 5 standard errors of the mean mask, block by block.
    keep = order.keep_probs()
    allowed = 5 * (keep * (1 - keep) / num_draws).clamp_min(0).sqrt()
    assert ((order.masks(widths).mean(0) - keep).abs() <= allowed + 1e-12).all()


@every_order
def test_masks_are_ones_then_zeros(order, table):
    masks = order.masks(order.widths())
    expected = [[1.0] * width + [0.0] * (order.num_blocks - width) for width in table]
    assert masks.tolist() == expected
    assert masks.dtype == F64


@every_order
def test_kl_of_an_order_from_itself_is_zero(order, table):
    assert kl(order, order).item() == 0


@every_order
def test_kl_by_enumeration_also_when_the_posterior_keeps_more_blocks(order, table):
    for _, prior, prior_table in CASES:
        if prior.num_blocks == order.num_blocks and prior.num_always <= order.num_always:
            expected = sum(prob * math.log(prob / prior_table[width]) for width, prob in table.items())
            assert kl(order, prior).item() == pytest.approx(expected, abs=1e-13)


def test_kl_refuses_orders_that_do_not_fit():
    with pytest.raises(ShapeError, match=r"orders over 4 and 5 blocks.*same blocks"):
        kl(Uniform(4), Uniform(5))
    with pytest.raises(RangeError, match=r"cut to 1 blocks and a prior that always keeps 2"):
        kl(Uniform(4), Uniform(4, num_always=2))


def test_kl_is_infinite_where_the_prior_excludes_a_width_and_finite_the_other_way_round():
    prior = BernoulliChain(torch.tensor([0.5, 0.0], dtype=F64))
    assert kl(Uniform(3, dtype=F64), prior).item() == math.inf
    assert kl(prior, Uniform(3, dtype=F64)).item() == pytest.approx(math.log(3 / 2), abs=1e-14)


def test_probabilities_at_their_ends_give_impossible_widths_without_nan():
    order = BernoulliChain(torch.tensor([1.0, 0.0, 0.4], dtype=F64), num_always=2)
    assert order.log_probs().exp().tolist() == [0.0, 1.0, 0.0, 0.0]
    assert order.keep_probs().tolist() == [1, 1, 1, 0, 0]
    assert order.entropy().item() == 0
    assert (order.sample((1000,), seeded(0)) == 3).all()


@pytest.mark.parametrize(("keep_prob", "width"), [(0.0, 2), (1.0, 6)])
def test_geometric_with_a_certain_outcome(keep_prob, width):
    order = Geometric(6, keep_prob, num_always=2)
    assert order.expected_width().item() == width
    assert (order.sample((100,), seeded(0)) == width).all()


@pytest.mark.parametrize("kind", [Downhill, lambda logits: BernoulliChain(logits=logits)], ids=["downhill", "chain"])
def test_a_batch_of_orders_is_each_of_them(kind):
    logits = torch.randn(2, 3, 4, dtype=F64, generator=seeded(1))
    batch = kind(logits)
    prior = Geometric(5, 0.8, dtype=F64)
    widths = batch.sample((6,), seeded(2))
    assert batch.log_probs().shape == (2, 3, 5)
    assert batch.keep_probs().shape == (2, 3, 5)
    assert widths.shape == (6, 2, 3)
    assert batch.masks(widths).shape == (6, 2, 3, 5)
    for i, j in itertools.product(range(2), range(3)):
        single = kind(logits[i, j])
        assert torch.equal(batch.log_probs()[i, j], single.log_probs())
        assert torch.equal(batch.keep_probs()[i, j], single.keep_probs())
        assert batch.expected_width()[i, j] == single.expected_width()
        assert batch.entropy()[i, j] == single.entropy()
        assert torch.equal(batch.log_prob(widths)[:, i, j], single.log_prob(widths[:, i, j]))
        assert kl(batch, prior)[i, j] == kl(single, prior)


def test_samples_of_a_batch_follow_each_order():
    """z-bounds of 5 standard errors on every mean width."""
    order = Downhill(torch.tensor([[3.0, 3.0, 3.0], [0.0, 0.0, 0.0], [-2.0, 4.0, 1.0]], dtype=F64))
    widths = order.sample((100_000,), seeded(3)).double()
    probs, values = order.log_probs().exp(), torch.arange(1.0, 5.0, dtype=F64)
    mean = probs @ values
    std = (probs @ values.square() - mean.square()).sqrt()
    assert ((widths.mean(0) - mean).abs() < 5 * std / math.sqrt(100_000)).all()


def test_sampling_is_reproducible_and_carries_no_gradient():
    order = Downhill(torch.zeros(5, requires_grad=True))
    assert torch.equal(order.sample((50,), seeded(4)), order.sample((50,), seeded(4)))
    assert not order.sample((2,)).is_floating_point()
    assert order.sample().shape == ()


# golden.json, 'order': posterior logits, prior logits, keep probabilities, width probabilities, KL.
PRIOR_95 = 2.9444389791664403
GOLDEN = [
    (
        [3.0] * 7,
        [PRIOR_95] * 7,
        [
            1.0,
            0.952574126822433,
            0.907397467091521,
            0.864363349895593,
            0.823370163284108,
            0.784321114342004,
            0.747124000642732,
            0.711690992540333,
        ],
        [
            0.0474258731775668,
            0.0451766597309121,
            0.0430341171959278,
            0.0409931866114852,
            0.0390490489421046,
            0.0371971136992717,
            0.0354330081023985,
            0.711690992540333,
        ],
        0.000431090087525804,
    ),
    (
        [2.0, -1.0, 0.5],
        [0.0] * 3,
        [1.0, 0.880797077977882, 0.23688281808991, 0.147449920521456],
        [0.119202922022118, 0.643914259887972, 0.0894328975684541, 0.147449920521456],
        0.432710056313903,
    ),
    ([1.5], [0.3], [1.0, 0.817574476193644], [0.182425523806356, 0.817574476193644], 0.134031337918147),
]


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("posterior", "prior", "keep_probs", "width_probs", "divergence"), GOLDEN)
def test_golden_orders(posterior, prior, keep_probs, width_probs, divergence, dtype, tolerance):
    q = Downhill(torch.tensor(posterior, dtype=dtype))
    p = BernoulliChain(logits=torch.tensor(prior, dtype=dtype))
    assert q.keep_probs().tolist() == pytest.approx(keep_probs, abs=tolerance)
    assert q.log_probs().exp().tolist() == pytest.approx(width_probs, abs=tolerance)
    assert kl(q, p).item() == pytest.approx(divergence, abs=tolerance)


@pytest.mark.parametrize("num_always", [1, 2])
@pytest.mark.parametrize(
    "of",
    [
        lambda q: q.log_probs(),
        lambda q: q.keep_probs(),
        lambda q: q.expected_width(),
        lambda q: q.entropy(),
        lambda q: kl(q, Geometric(q.num_blocks, 0.8, dtype=F64)),
        lambda q: kl(Uniform(q.num_blocks, num_always=q.num_always, dtype=F64), q),
        lambda q: q.log_prob(torch.full(q.logits.shape[:-1], q.num_always + 1)),
    ],
    ids=["log_probs", "keep_probs", "expected_width", "entropy", "kl_posterior", "kl_prior", "log_prob"],
)
def test_gradcheck(of, num_always):
    logits = torch.randn(2, 4, dtype=F64, generator=seeded(5)).mul(2).requires_grad_()
    assert gradcheck(lambda x: of(Downhill(x, num_always=num_always)), (logits,))


def test_gradient_of_the_expected_width_is_that_of_the_products():
    """d E[width] / d logit_k = (1 - mu_k) * (sum of the keep probabilities from block k on)."""
    logits = torch.tensor([1.0, -0.5, 2.0], dtype=F64, requires_grad=True)
    order = Downhill(logits)
    (grad,) = torch.autograd.grad(order.expected_width(), logits)
    keep = order.keep_probs().detach()
    expected = [(1 - sigmoid(x)) * keep[k + 1 :].sum().item() for k, x in enumerate(logits.tolist())]
    assert grad.tolist() == pytest.approx(expected, abs=1e-14)


def test_a_parameter_is_learned_and_any_other_tensor_is_a_buffer():
    learned = Downhill(torch.nn.Parameter(torch.zeros(3)))
    fixed = Downhill(torch.zeros(3))
    assert [n for n, _ in learned.named_parameters()] == ["logits"]
    assert [n for n, _ in fixed.named_buffers()] == ["logits"]
    assert not list(fixed.parameters())
    twin = Downhill(torch.ones(3))
    twin.load_state_dict(fixed.state_dict())
    assert torch.equal(twin.logits, fixed.logits)


def test_log_prob_refuses_widths_it_does_not_have():
    order = Uniform(5, num_always=2)
    with pytest.raises(RangeError, match=r"values from 1 to 6.*between 2 and 5"):
        order.log_prob(torch.tensor([1, 6]))
    with pytest.raises(DtypeError, match=r"torch.float32.*integer"):
        order.log_prob(torch.tensor([2.0]))
    with pytest.raises(DtypeError, match=r"a int.*torch.tensor"):
        order.log_prob(2)
    with pytest.raises(ShapeError, match=r"shape \(5,\).*batch of orders \(2,\)"):
        Downhill(torch.zeros(2, 3)).log_prob(torch.ones(5, dtype=torch.long))


def test_print_shows_the_blocks():
    assert repr(Uniform(4, num_always=2)) == "Uniform(num_blocks=4, num_always=2)"
    assert repr(Downhill(torch.zeros(3), temperature=0.25)) == "Downhill(num_blocks=4, num_always=1, temperature=0.25)"


logit_lists = st.lists(st.floats(-30, 30), min_size=0, max_size=12)


@given(logit_lists, st.integers(1, 4))
def test_any_chain_is_a_distribution_with_falling_keep_probs(values, num_always):
    order = Downhill(torch.tensor(values, dtype=F64), num_always=num_always)
    keep = order.keep_probs()
    assert order.log_probs().exp().sum().item() == pytest.approx(1, abs=1e-12)
    assert (keep.diff() <= 0).all()
    assert ((keep >= 0) & (keep <= 1)).all()
    assert -1e-12 <= order.entropy().item() <= math.log(order.num_widths) + 1e-12
    assert num_always <= order.expected_width().item() <= order.num_blocks + 1e-12


@given(st.lists(st.tuples(st.floats(-15, 15), st.floats(-15, 15)), min_size=1, max_size=10))
def test_kl_of_any_two_chains_is_not_negative(pairs):
    """Rounding alone may go below zero: |log-ratio| up to 150 times eps of 1e-16 for each of ten states."""
    q, p = (torch.tensor(column, dtype=F64) for column in zip(*pairs, strict=True))
    assert kl(Downhill(q), BernoulliChain(logits=p)).item() >= -1e-12
