"""What a step computes and keeps, counted, so that a slow-down fails without a clock: MACs, kernels, bytes."""

import math

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import nestling as nl
from nestling.reading.cut import full_cut
from nestling.training.elbo import elbo_terms
from nestling.training.terms import weight_divergence

BATCH = 8


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        *(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def inputs():
    made = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, 3, 8, 8, generator=made), torch.randint(0, 10, (BATCH,), generator=made)


def nested(sampling):
    options = {"weights": "gaussian", "sampling": sampling, "num_blocks": 4, "num_always": 1}
    return nl.nest(network(), torch.zeros(2, 3, 8, 8), **options).train()


def step(model, cut):
    """The loss of a batch at a cut, with its divergence."""
    x, y = inputs()
    with model.shared_at(cut):
        loss = nn.functional.cross_entropy(model(x), y)
        return loss + weight_divergence(model, cut, nl.distributions.log_uniform_kl) / 1000


def flops(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


LOOKS = """
    view reshape detach as_strided expand t transpose narrow slice select split permute alias unbind squeeze unsqueeze
    empty empty_like empty_strided resolve_conj
""".split()
"""Operations that only look at a tensor in another way, or make room for one."""


def kernels(function):
    """How many operations compute."""
    with torch.profiler.profile() as profile:
        function()
    rows = [(row.key.removeprefix("aten::"), row.count) for row in profile.key_averages() if "aten::" in row.key]
    return sum(count for name, count in rows if name not in LOOKS)


def kept_bytes(model, function):
    """Bytes of what autograd keeps for the way back, parameters left out and nothing counted twice."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    seen = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = function()
    del result
    return sum(seen.values())


@pytest.mark.parametrize(("sampling", "times"), [("local", 2), ("shared", 1)])
@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_a_step_computes_the_macs_of_its_cut(sampling, times, fraction):
    """Once for each example with a drawn weight, twice with local noise; and the first layer needs no gradient of x."""
    model = nested(sampling)
    with model.at(fraction):
        cut = model.cut
    small = nl.extract(model.eval(), cut)
    model.train()
    x, y = inputs()
    forward = flops(lambda: small(x))
    assert forward == 2 * BATCH * nl.cost(model, cut).macs
    assert flops(lambda: step(model, cut)) == times * forward
    plain = flops(lambda: nn.functional.cross_entropy(small(x), y).backward())
    assert flops(lambda: step(model, cut).backward()) <= times * plain + times * forward // 10


def test_a_narrow_step_is_cheap():
    model = nested("local")
    plain = network().train()
    x, y = inputs()
    whole = flops(lambda: nn.functional.cross_entropy(plain(x), y).backward())
    with model.at(0.25):
        narrow = model.cut
    assert flops(lambda: step(model, narrow).backward()) < 0.35 * whole


@pytest.mark.parametrize(("sampling", "most"), [("local", 640), ("shared", 490)])
def test_kernels_of_a_step(sampling, most):
    """A bound somewhat above what it takes now: forward, backward and divergence of four layers and two norms."""
    model = nested(sampling)
    with model.at(0.5):
        cut = model.cut
    step(model, cut).backward()
    assert kernels(lambda: step(model, cut).backward()) <= most


def test_the_divergence_keeps_the_gradient_that_it_will_give_and_nothing_else():
    model = nested("local")
    everything = full_cut(model.groups)
    kl = nl.distributions.log_uniform_kl
    assert kept_bytes(model, lambda: weight_divergence(model, everything, kl)) == 0
    value = weight_divergence(model, everything, kl)
    sizes = {own.slope.data_ptr(): own.slope.numel() for own in nodes_before(value.grad_fn) if hasattr(own, "slope")}
    assert sum(sizes.values()) == sum(own.numel() for own in model.log_alphas(everything).values())
    value.backward()
    given = {own.grad.data_ptr() for path, own in model.named_parameters() if path.endswith("log_alpha")}
    assert given == sizes.keys(), "made in the place of the slopes"


def nodes_before(node):
    """The nodes of a graph that a value hangs on, itself first."""
    yield node
    for before, _ in node.next_functions:
        if before is not None:
            yield from nodes_before(before)


@pytest.mark.parametrize(("sampling", "most"), [("local", 0), ("shared", 2)])
def test_what_a_step_keeps(sampling, most):
    """Beside what a plain step keeps: with local noise one tensor an activation, with a drawn weight two a weight."""
    plain, model = network().train(), nested(sampling)
    x, y = inputs()
    base = kept_bytes(plain, lambda: nn.functional.cross_entropy(plain(x), y))
    weights = 4 * sum(own.numel() for own in plain.parameters() if own.ndim > 1)
    sizes = [math.prod(shape) for shape in ((16, 8, 8), (32, 4, 4), (64,), (10,))]
    activations = 4 * BATCH * sum(sizes) if sampling == "local" else 0
    assert kept_bytes(model, lambda: step(model, full_cut(model.groups))) <= base + most * weights + activations + 4096


def test_no_buffers_beside_those_of_the_network():
    model, plain = nested("local"), network()
    step(model, full_cut(model.groups)).backward()
    elbo_terms(model, inputs(), dataset_size=100).loss.backward()
    own = {name for name, _ in model.module.named_buffers()}
    assert own == {name for name, _ in plain.named_buffers()}
    weights = sum(own.numel() for own in plain.parameters() if own.ndim > 1)
    extra = sum(own.numel() for own in model.module.parameters()) - sum(own.numel() for own in plain.parameters())
    assert extra == weights  # a log alpha for each weight
