"""Nested networks with variational layers: cuts of means and noise together, draws, statistics, copies, extraction."""

import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from oracle import randomise
from torch import Tensor, nn
from torch.nn import functional as F

from nestling import Cut, extract, nest
from nestling.running.layers import VariationalLayer, make_variational

TOLERANCE = 1e-9
F64 = torch.float64


def plain_cnn():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(45, 7),
        nn.Tanh(),
        nn.Linear(7, 3),
    )


class Depthwise(nn.Module):
    """An inverted residual block."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.expand, self.norm = nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.project, self.head = nn.Conv2d(8, 4, 1), nn.Linear(4, 3)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.project(F.relu6(self.depthwise(F.relu6(self.norm(self.expand(x))))))
        return self.head(x.mean((2, 3)))


class Residual(nn.Module):
    """Two blocks on one stream; the second has a branch with a norm."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.first, self.norm, self.second = nn.Conv2d(6, 5, 3, padding=1), nn.BatchNorm2d(5), nn.Conv2d(5, 6, 1)
        self.third, self.fourth = nn.Conv2d(6, 7, 1), nn.Conv2d(7, 6, 3, padding=1)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = x + self.second(F.relu(self.norm(self.first(x))))
        x = x + self.fourth(F.silu(self.third(x)))
        return self.head(x.mean((2, 3)))


class Unet(nn.Module):
    """One step down and up, with a skip that is concatenated, and an output size that is asked for."""

    def __init__(self):
        super().__init__()
        self.left, self.down = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(6, 5, 3, stride=2, padding=1)
        self.right, self.head = nn.Conv2d(9, 4, 3, padding=1), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        skip = F.relu(self.left(x))
        up = self.up(F.relu(self.down(skip)), output_size=skip.shape[2:])
        return self.head(F.relu(self.right(torch.cat([skip, up], 1))))


class Transformer(nn.Module):
    """Attention with its sizes in the code, so that the graph is run."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(12, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.embed(x)
        query, key, value = (layer(x).view(*x.shape[:2], 4, 2).transpose(1, 2) for layer in self.heads)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        return self.head((x + self.narrow(F.gelu(self.wide(self.norm(x))))).mean(1))

    @property
    def heads(self):
        return self.query, self.key, self.value


class Concatenated(nn.Module):
    """A norm over two concatenated groups: what it keeps at a cut is not its first entries."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        return self.head(F.relu(self.norm(torch.cat([self.left(x), self.right(x)], 1))))


class NormedAttention(Transformer):
    """A batch norm in a network that runs as a graph."""

    def __init__(self):
        super().__init__()
        self.batch_norm = nn.BatchNorm1d(12)
        self.norm = nn.Identity()

    def forward(self, x):
        x = self.embed(x)
        query, key, value = (layer(x).view(*x.shape[:2], 4, 2).transpose(1, 2) for layer in self.heads)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x.shape)
        wide = self.batch_norm(self.wide(x + self.out(mixed)).transpose(1, 2)).transpose(1, 2)
        return self.head(self.narrow(F.gelu(wide)).mean(1))


def plain_mlp():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6, bias=False), nn.ReLU(), nn.Linear(6, 3))


@dataclass(frozen=True)
class Net:
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    graph: bool = False


NETS = {
    "mlp": Net(plain_mlp, (5,)),
    "cnn": Net(plain_cnn, (3, 7, 7)),
    "depthwise": Net(Depthwise, (3, 5, 5)),
    "residual": Net(Residual, (3, 5, 5)),
    "unet": Net(Unet, (3, 6, 6)),
    "transformer": Net(Transformer, (4, 5), graph=True),
}
EACH = pytest.mark.parametrize("name", NETS)
BY_MODULE = pytest.mark.parametrize("name", [name for name, net in NETS.items() if not net.graph])
OPTIONS = {"num_always": 1, "order": "uniform", "where": "all", "kinds": ("neuron", "channel", "head", "path")}


def images(name, size=4, seed=0):
    return torch.randn(size, *NETS[name].shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def fresh(name):
    return randomise(NETS[name].build(), torch.Generator().manual_seed(1))


def nested(name, weights="gaussian", **options):
    found = nest(fresh(name), images(name), weights=weights, **OPTIONS, **options)
    with torch.no_grad():
        for layer in variational(found):
            layer.posterior.log_alpha.uniform_(-3.0, 0.0, generator=torch.Generator().manual_seed(2))
    return found


@cache
def shared(name, weights="gaussian"):
    """A nested network for the tests that leave it as it is."""
    return nested(name, weights).eval()


def variational(module) -> list[VariationalLayer]:
    return [part for part in module.modules() if isinstance(part, VariationalLayer)]


def cuts(network):
    """The whole, half, the least, and a width of its own for each group."""
    uneven = {group.name: 1 + position % group.num_blocks for position, group in enumerate(network.groups.free)}
    return [1.0, 0.5, 0.01, uneven]


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def assert_unchanged(module, before):
    assert module.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


# Eval mode


@EACH
def test_eval_mode_at_a_cut_is_the_plain_nested_network(name):
    noisy, plain, x = shared(name), shared(name, None), images(name, 3, seed=4)
    assert [group.name for group in noisy.groups] == [group.name for group in plain.groups]
    assert len(noisy.groups.free) >= 2
    assert variational(noisy)
    for cut in cuts(noisy):
        with noisy.at(cut), plain.at(cut):
            assert torch.allclose(noisy(x), plain(x), rtol=0, atol=TOLERANCE)
    assert torch.allclose(noisy(x), fresh(name).eval()(x), rtol=0, atol=TOLERANCE)


@EACH
def test_extraction_leaves_nothing_of_nestling(name):
    noisy, x = shared(name), images(name, 3, seed=4)
    for cut in cuts(noisy):
        small = extract(noisy, cut)
        assert not [part for part in small.modules() if type(part).__module__.startswith("nestling")]
        assert not [key for key in small.state_dict() if "posterior" in key or "log_alpha" in key]
        assert {type(tensor) for tensor in small.parameters()} == {nn.Parameter}
        with noisy.at(cut):
            assert torch.allclose(small(x), noisy(x), rtol=0, atol=TOLERANCE)
        small(x).sum().backward()
        assert all(tensor.grad is not None for tensor in small.parameters())
        assert not any(tensor.grad is not None for tensor in noisy.parameters())
    assert extract(noisy, 1.0).state_dict().keys() == fresh(name).state_dict().keys()


LOAD = """
import sys
sys.modules["nestling"] = None  # importing it is an error now
import torch
for path in sys.argv[1:]:
    values = torch.load(f"{path}.pt", weights_only=True)
    small = torch.export.load(f"{path}.pt2").module()
    assert torch.allclose(small(values["x"]), values["y"], rtol=0, atol=1e-9)
assert not [name for name in sys.modules if name.startswith("nestling.")]
"""


def test_an_extracted_network_runs_where_nestling_is_not_installed(tmp_path):
    """Modules of torch's own classes, and the graph of an attention network, exported and read by another process."""
    paths = [str(tmp_path / name) for name in ("mlp", "cnn", "transformer")]
    for path in paths:
        small, x = extract(shared(path.rpartition("/")[2]), 0.5), images(path.rpartition("/")[2], 3, seed=5)
        torch.save({"x": x, "y": small(x).detach()}, f"{path}.pt")
        torch.export.save(torch.export.export(small, (x,)), f"{path}.pt2")
    done = subprocess.run([sys.executable, "-c", LOAD, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@EACH
def test_extraction_in_train_mode_takes_the_means_too(name):
    noisy, x = nested(name).train(), images(name, 3, seed=4)
    small = extract(noisy, 0.5)
    with noisy.eval().at(0.5):
        assert torch.allclose(small(x), noisy(x), rtol=0, atol=TOLERANCE)


# Noise is cut with its weight


@EACH
def test_log_alpha_is_cut_with_its_mean(name):
    noisy = nested(name)
    layers = {path: part for path, part in noisy.module.named_modules() if isinstance(part, VariationalLayer)}
    with torch.no_grad():
        for layer in layers.values():
            layer.posterior.log_alpha.copy_(layer.posterior.mean * 3)
    uneven = {group.name: 1 + position % group.num_blocks for position, group in enumerate(noisy.groups.free)}
    with noisy.at(uneven):
        small = noisy.tensors_at(noisy.cut)
    assert any(key.endswith("posterior.mean") for key in small)
    for path in layers:
        mean, log_alpha = (small.get(f"{path}.posterior.{key}") for key in ("mean", "log_alpha"))
        assert (mean is None) == (log_alpha is None)
        if mean is not None:
            assert torch.equal(log_alpha, mean * 3)


@BY_MODULE
@pytest.mark.parametrize("sampling", ["local", "channel", "shared", "each"])
def test_a_draw_at_a_cut_is_that_of_the_small_network_made_variational(name, sampling):
    """With the same seed: the noise has the small network's shapes and strengths."""
    noisy, x = nested(name, sampling=sampling), images(name, 3, seed=6)
    small = extract(noisy, 0.5)
    paths = make_variational(small, (), sampling)
    with noisy.at(0.5):
        kept = noisy.tensors_at(noisy.cut)
    with torch.no_grad():
        for path in paths:
            key = f"{path}.posterior.log_alpha"
            own = noisy.module.get_parameter(key)
            small.get_parameter(key).copy_(kept.get(key, own))
    noisy.train(), small.train()
    with noisy.at(0.5):
        torch.manual_seed(7)
        found = noisy(x)
    torch.manual_seed(7)
    assert torch.allclose(found, small(x), rtol=0, atol=TOLERANCE)


# Train mode


@EACH
def test_train_mode_draws_widths_and_weights(name):
    noisy, x = nested(name).train(), images(name)
    torch.manual_seed(8)
    assert len({noisy.sample_cut() for _ in range(20)}) > 1
    outputs = [noisy(x) for _ in range(12)]
    assert all(torch.isfinite(y).all() for y in outputs)
    assert not any(torch.equal(outputs[0], y) for y in outputs[1:])
    torch.stack([y.square().mean() for y in outputs]).sum().backward()
    for layer in variational(noisy):
        for tensor in (layer.posterior.mean, layer.posterior.log_alpha):
            assert torch.isfinite(tensor.grad).all()
            assert bool((tensor.grad != 0).any())


@EACH
def test_without_noise_train_mode_draws_widths_only(name):
    noisy, x = nested(name).train(), images(name)
    for layer in variational(noisy):
        layer.noisy = False
    torch.manual_seed(9)
    assert len({tuple(noisy(x).flatten().tolist()) for _ in range(12)}) > 3
    with noisy.at(0.5):
        assert torch.allclose(noisy(x), noisy(x), rtol=0, atol=1e-13), "inside a cut, nothing is left to draw"


@EACH
def test_a_cut_in_train_mode_draws_weights_only(name):
    noisy, x = nested(name).train(), images(name)
    torch.manual_seed(10)
    with noisy.at(0.5):
        outputs = [noisy(x) for _ in range(4)]
        kept = {key: tensor.shape for key, tensor in noisy.tensors_at(noisy.cut).items()}
    assert not any(torch.equal(outputs[0], y) for y in outputs[1:])
    torch.stack(outputs).square().sum().backward()
    own = dict(noisy.module.named_parameters())
    for key, shape in kept.items():
        if key in own:
            assert int((own[key].grad != 0).sum()) <= shape.numel(), f"{key} has a gradient where it was cut"
            assert bool((own[key].grad != 0).any()) or key.endswith("bias")


# Statistics of norms


@pytest.mark.parametrize("name", ["cnn", "depthwise", "residual"])
def test_running_statistics_of_the_kept_channels_move_as_in_the_small_network(name):
    plain, x = nested(name, None), images(name, seed=11)
    small = extract(plain, 0.5).train()
    before = state(plain.module)
    plain.train()
    with plain.at(0.5):
        plain(x)
    small(x)
    moved = 0
    for key, value in plain.module.state_dict().items():
        if key.endswith(("running_mean", "running_var")):
            reached = small.state_dict()[key]
            assert torch.allclose(value[: len(reached)], reached, rtol=0, atol=TOLERANCE)
            assert not torch.isclose(value[: len(reached)], before[key][: len(reached)]).any()
            assert torch.equal(value[len(reached) :], before[key][len(reached) :]), "cut channels stay"
            assert len(reached) < len(value)
            moved += 1
        elif not key.endswith("num_batches_tracked"):
            assert torch.equal(value, before[key])
    assert moved


def test_running_statistics_move_where_the_kept_channels_do_not_come_first():
    x = torch.randn(4, 3, 5, 5, dtype=F64)
    plain = nest(randomise(Concatenated(), torch.Generator().manual_seed(1)), x, weights=None, **OPTIONS)
    before = state(plain.module)
    small = extract(plain, 0.5).train()
    small(x)
    plain.train()
    with plain.at(0.5):
        plain(x)
    kept, cut = torch.tensor([0, 1, 4, 5]), torch.tensor([2, 3, 6, 7])
    for key in ("norm.running_mean", "norm.running_var"):
        value = plain.module.state_dict()[key]
        assert torch.equal(value[cut], before[key][cut])
        assert torch.allclose(value[kept], small.state_dict()[key], rtol=0, atol=TOLERANCE)


def normed_attention():
    x = torch.randn(4, 4, 5, dtype=F64)
    module = randomise(NormedAttention(), torch.Generator().manual_seed(1))
    return nest(module, x, weights=None, **OPTIONS).train(), x


def test_running_statistics_move_in_a_network_that_runs_as_a_graph():
    plain, x = normed_attention()
    before = state(plain.module)
    with plain.at(0.5):
        plain(x)
    for key in ("batch_norm.running_mean", "batch_norm.running_var"):
        value = plain.module.state_dict()[key]
        assert not torch.isclose(value[:6], before[key][:6]).any()
        assert torch.equal(value[6:], before[key][6:])
    assert plain.module.batch_norm.num_batches_tracked == before["batch_norm.num_batches_tracked"] + 1


def test_a_norm_in_eval_mode_stays_so_in_a_network_that_trains_as_a_graph():
    plain, x = normed_attention()
    plain.module.batch_norm.eval()
    before = state(plain.module)
    with plain.at(0.5):
        plain(x)
    assert_unchanged(plain.module, before)


# Copies and states


@EACH
def test_the_callers_module_is_left_as_it_is(name):
    module, x = fresh(name), images(name)
    parts = list(module.modules())
    parts[1].eval()
    before, modes = state(module), [part.training for part in parts]
    noise = torch.get_rng_state()
    found = nest(module, x, **OPTIONS)
    assert torch.equal(torch.get_rng_state(), noise), "nesting draws nothing"
    assert list(module.modules()) == parts
    assert [part.training for part in parts] == modes
    own = {tensor.data_ptr() for tensor in module.state_dict().values()}
    assert own.isdisjoint(tensor.data_ptr() for tensor in found.state_dict().values())
    found.train()
    for _ in range(3):
        found(x).sum().backward()
    with found.at(0.5), torch.no_grad():
        found(x)
        for tensor in found.parameters():
            tensor.zero_()
    assert_unchanged(module, before)
    assert not any(tensor.grad is not None for tensor in module.parameters())


def test_every_part_keeps_the_mode_it_had():
    module = fresh("cnn")
    module[1].eval()
    found = nest(module, images("cnn"), **OPTIONS)
    assert found.training
    assert [part.training for part in found.module] == [part.training for part in module]
    assert not nest(module.eval(), images("cnn"), **OPTIONS).training


@EACH
def test_a_state_loads_into_another_nested_network(name):
    one, x = nested(name).eval(), images(name, 3, seed=12)
    other = nest(NETS[name].build().double(), images(name), weights="gaussian", **OPTIONS).eval()
    other.load_state_dict(one.state_dict())
    for cut in (1.0, 0.5):
        with one.at(cut), other.at(cut):
            assert torch.equal(one(x), other(x))
    assert_unchanged(other, state(one))


@EACH
def test_a_copy_is_independent(name):
    one, x = nested(name).eval(), images(name, 3, seed=13)
    with one.at(0.5), torch.no_grad():
        expected = one(x)
    other = deepcopy(one)
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.mul_(0.5)
    with one.at(0.5), other.at(0.5), torch.no_grad():
        assert torch.equal(one(x), expected)
        assert not torch.isclose(other(x), expected).all()
        small = extract(other, 0.5)
        assert torch.allclose(small(x), other(x), rtol=0, atol=TOLERANCE)
    for tensor in other.train()(x), other(x):
        tensor.sum().backward()
    assert not any(tensor.grad is not None for tensor in one.parameters())
    assert one.training is False


@EACH
def test_the_dtype_can_be_changed_afterwards(name):
    module = fresh(name).float()
    found = nest(module, images(name).float(), **OPTIONS).eval()
    with found.at(0.5):
        assert found(images(name).float()).dtype == torch.float32
        found.double()
        assert found(images(name)).dtype == F64
        plain = nest(module.double(), images(name), weights=None, **OPTIONS).eval()
        with plain.at(0.5):
            assert torch.allclose(found(images(name)), plain(images(name)), rtol=0, atol=TOLERANCE)


@EACH
def test_a_network_whose_dtype_was_changed_can_be_extracted(name):
    found = nest(fresh(name).float(), images(name).float(), **OPTIONS).double().eval()
    small = extract(found, 0.5)
    with found.at(0.5):
        assert torch.allclose(small(images(name)), found(images(name)), rtol=0, atol=TOLERANCE)


# What real networks do to their layers


class AsksForSizes(nn.Module):
    """Code that reads the sizes of its layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 1), nn.Linear(6, 3)

    def forward(self, x):
        y = F.relu(self.first(x)).reshape(len(x), self.first.out_channels, -1).reshape(len(x), 4, 3, 3)
        y = self.second(y[:, : self.second.in_channels]).mean((2, 3))
        return self.head(y.view(-1, self.head.in_features))


def test_code_that_asks_its_layers_for_their_sizes_still_runs():
    x = torch.randn(2, 3, 5, 5, dtype=F64)
    module = randomise(AsksForSizes(), torch.Generator().manual_seed(1))
    for exclude in ((), ("second", "head")):
        found = nest(module, x, exclude=exclude, **OPTIONS).eval()
        assert torch.allclose(found(x), module(x), rtol=0, atol=TOLERANCE)
        for cut in cuts(found):
            extract(found, cut)


def test_a_module_that_goes_by_two_names_is_cut_as_one():
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    module.insert(3, module[2])
    module, x = randomise(module, torch.Generator().manual_seed(1)), torch.randn(3, 4, dtype=F64)
    found = nest(module, x, **OPTIONS).eval()
    assert found.module[2] is found.module[3]
    assert torch.allclose(found(x), module(x), rtol=0, atol=TOLERANCE)
    for cut in cuts(found):
        small = extract(found, cut)
        assert small[2] is small[3]


class SecondName(nn.Module):
    """A layer that is called by the second of its names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.again, self.head = self.first, nn.Linear(6, 2)

    def forward(self, x):
        return self.head(F.relu(self.again(x)))


def test_a_layer_may_be_called_by_the_second_of_its_names():
    module, x = randomise(SecondName(), torch.Generator().manual_seed(1)), torch.randn(3, 4, dtype=F64)
    found = nest(module, x, **OPTIONS).eval()
    assert [group.name for group in found.groups.free] == ["first"]
    assert torch.allclose(found(x), module(x), rtol=0, atol=TOLERANCE)


def test_a_layer_may_be_excluded_by_the_second_of_its_names():
    excluded = nest(SecondName(), torch.randn(3, 4), exclude=("again",), **OPTIONS)
    assert not excluded.groups.free


def test_weights_are_drawn_in_eval_mode_without_gradients_in_torchs_own_transformer():
    module = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0).double()
    x = torch.randn(2, 4, 8, dtype=F64)
    found = nest(module, x, kinds=("neuron",)).eval()
    assert [group.name for group in found.groups.free] == ["linear1"]
    with torch.no_grad(), found.drawing():
        assert not torch.isclose(found(x), found(x)).all()


def test_a_cut_is_what_was_asked_for():
    found = shared("mlp")
    with found.at(0.5) as same:
        assert same is found
        assert found.cut == Cut((("0", 4), ("2", 3)))
        with found.at({"2": 1}):
            assert found.cut == Cut((("0", 8), ("2", 1)))
        assert found.cut["2"] == 3
    assert found.cut == Cut((("0", 8), ("2", 6)))


class NormedHeads(nn.Module):
    """Attention, which runs as a graph, behind a norm that can't be in train mode for one example."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.qkv, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.norm(self.stem(x)).unsqueeze(1)
        q, k, v = self.qkv(x).reshape(x.shape[0], 1, 3, 4, 2).permute(2, 0, 3, 1, 4)
        return self.head(self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape[0], 8)))


def test_a_graph_is_taken_in_train_mode_though_its_example_is_too_small_for_a_norm():
    """A graph taken in eval mode would train without its dropout and with frozen norms."""
    options = {"kinds": ("neuron", "head"), "where": "all", "weights": None, "num_always": 1}
    several = nest(NormedHeads(), torch.randn(2, 6), **options)
    assert "qkv" in {group.name for group in several.groups.free}
    one = nest(NormedHeads(), torch.randn(1, 6), **options)
    assert "qkv" in {group.name for group in one.groups.free}
    before = one.module.norm.running_mean.clone()
    one.train()(torch.randn(5, 6))
    assert not torch.equal(one.module.norm.running_mean, before)


@EACH
def test_extraction_with_uncertainty_keeps_the_layers_that_draw(name):
    noisy, x = nested(name).eval(), images(name, 3, seed=6)
    small, plain = extract(noisy, 0.5, uncertainty=True), extract(noisy, 0.5)
    assert torch.equal(small(x), plain(x))
    layers = {path: part for path, part in small.named_modules() if isinstance(part, VariationalLayer)}
    assert layers
    for path, layer in layers.items():
        whole, left = noisy.module.get_submodule(path).posterior, layer.posterior
        assert left.mean.shape == left.log_alpha.shape == plain.state_dict()[f"{path}.weight"].shape
        noise_of = dict(zip(whole.mean.flatten().tolist(), whole.log_alpha.flatten().tolist(), strict=True))
        assert [noise_of[mean] for mean in left.mean.flatten().tolist()] == left.log_alpha.flatten().tolist()
        layer.noisy = True
    draws = torch.stack([small(x).detach() for _ in range(3)])
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[1], draws[2])


def test_a_stack_of_networks_draws_under_vmap():
    """Nothing that follows from the parameters is kept for tensors that torch.func has wrapped."""
    nested = nest(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.zeros(2, 4), num_blocks=2).eval()
    stacked = {name: torch.stack([own, 2 * own]) for name, own in nested.named_parameters()}
    x = torch.randn(3, 4)

    def call(parameters):
        return torch.func.functional_call(nested, parameters, (x,))

    with torch.no_grad(), nested.drawing():
        found = torch.func.vmap(call, randomness="different")(stacked)
    assert found.shape == (2, 3, 2)
    assert not torch.equal(found[0], found[1])
