"""Units sorted by importance: the whole network stays as it is, and a cut keeps what is largest, as found by hand."""

import warnings
from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from oracle import assert_same, outputs, randomise
from torch import nn
from torch.nn import functional as F
from zoo import CASES

import nestling as nl
from nestling.errors import ArgumentError, NonFiniteError, ShapeError

PLAIN = {"weights": None, "order": "uniform", "num_blocks": 64, "num_always": 1}
ALL = {"kinds": ("neuron", "channel", "head", "path"), "where": "all"}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def importances(group, tensors):
    """The sum of absolute weights that produce each unit, entry by entry."""
    found = []
    for unit in range(group.size):
        total = 0.0
        for piece in group.slices:
            if not piece.reads and tensors[piece.tensor].ndim > 1:
                for row in piece.rows[unit].tolist():
                    total += tensors[piece.tensor].select(piece.axis, row).abs().sum().item()
        found.append(total)
    return found


def descending(values):
    return all(left >= right - 1e-9 for left, right in pairwise(values))


# ---- the whole network stays as it is


@pytest.mark.filterwarnings("ignore:the network takes its path from the data")
@pytest.mark.parametrize("case", [case for case in CASES if case.movable], ids=lambda case: case.name)
def test_the_zoo_computes_the_same_at_full_width(case):
    module = randomise(case.full(), seeded())
    before, example = deepcopy(module.state_dict()), case.example()
    nested = nl.nest(module, example, sort="norm", **PLAIN, **ALL).eval()
    assert_same(outputs(nested, example), outputs(module, example), "sorted at full width")
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    for group in nested.groups.free:
        found = importances(group, nested.tensors())
        assert descending(found), f"{group.name} is not in order"
        assert found == pytest.approx(sorted(importances(group, own), reverse=True), rel=1e-9)


class ConvNet(nn.Module):
    """Convolutions with batch norms, flattened into a linear layer."""

    def __init__(self):
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.norm2 = nn.Conv2d(8, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.hidden, self.head = nn.Linear(6 * 16, 10), nn.Linear(10, 4)

    def forward(self, x):
        x = F.relu(self.norm1(self.first(x)))
        x = F.max_pool2d(F.relu(self.norm2(self.second(x))), 2)
        return self.head(torch.tanh(self.hidden(x.flatten(1))))


IMAGES = torch.randn(5, 3, 8, 8, generator=seeded(1), dtype=torch.float64)


def convnet():
    return randomise(ConvNet(), seeded()).eval()


def cut_by_hand(module):
    """Half of each layer: the filters of the largest absolute sum, most important first."""
    small = ConvNet().double().eval()
    kept = {}
    for name in ("first", "second", "hidden"):
        weight = getattr(module, name).weight
        kept[name] = weight.detach().abs().flatten(1).sum(1).topk(weight.shape[0] // 2).indices
    first, second, hidden = kept.values()
    pixels = (16 * second[:, None] + torch.arange(16)).flatten()
    own = dict(module.named_parameters()) | {name: buffer for name, buffer in module.named_buffers() if buffer.ndim}
    taken = {name: tensor[first] for name, tensor in own.items() if name.startswith(("first", "norm1"))}
    taken |= {name: tensor[second] for name, tensor in own.items() if name.startswith(("second", "norm2"))}
    taken |= {name: tensor[hidden] for name, tensor in own.items() if name.startswith("hidden")}
    taken |= {"head.weight": own["head.weight"][:, hidden], "head.bias": own["head.bias"]}
    taken["second.weight"] = taken["second.weight"][:, first]
    taken["hidden.weight"] = taken["hidden.weight"][:, pixels]
    for name, tensor in taken.items():
        path, _, key = name.rpartition(".")
        store = small.get_submodule(path)
        setattr(store, key, nn.Parameter(tensor.detach()) if isinstance(own[name], nn.Parameter) else tensor)
    return small


@pytest.mark.parametrize("weights", [None, "gaussian"])
def test_half_of_a_sorted_network_is_cut_by_hand(weights):
    module = convnet()
    nested = nl.nest(module, IMAGES[:2], sort="norm", **PLAIN | {"weights": weights}).eval()
    hand = cut_by_hand(module)
    with torch.no_grad(), nested.at(0.5):
        assert_same(nested(IMAGES), hand(IMAGES), "half of each layer")
    small = nl.extract(nested, 0.5)
    for name, tensor in small.named_parameters():
        assert torch.equal(tensor, hand.get_parameter(name)), name
    unsorted = nl.nest(module, IMAGES[:2], sort="none", **PLAIN).eval()
    with torch.no_grad(), unsorted.at(0.5):
        assert not torch.allclose(unsorted(IMAGES), hand(IMAGES), rtol=1e-3)


def test_depthwise_weights_count_towards_their_channel():
    module = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.ReLU(), nn.Conv2d(6, 2, 1))
    module = randomise(module, seeded())
    nested = nl.nest(module, IMAGES, sort="norm", **PLAIN).eval()
    size = module[0].weight.abs().sum((1, 2, 3)) + module[1].weight.abs().sum((1, 2, 3))
    order = size.argsort(descending=True)
    assert torch.equal(nested.module[0].weight, module[0].weight[order])
    assert torch.equal(nested.module[1].bias, module[1].bias[order])
    assert torch.equal(nested.module[3].weight, module[3].weight[:, order])


def test_a_layer_that_is_called_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.shared, self.head = nn.Linear(4, 7), nn.Linear(7, 7), nn.Linear(7, 3)

        def forward(self, x):
            return self.head(F.relu(self.shared(F.relu(self.shared(F.relu(self.first(x)))))))

    module, x = randomise(Twice(), seeded()), torch.randn(5, 4, generator=seeded(), dtype=torch.float64)
    nested = nl.nest(module, x, sort="norm", where="all", **PLAIN).eval()
    order = (module.first.weight.abs().sum(1) + module.shared.weight.abs().sum(1)).argsort(descending=True)
    assert torch.equal(nested.module.shared.weight, module.shared.weight[order][:, order])
    assert_same(outputs(nested, (x,)), outputs(module, (x,)), "sorted at full width")


def test_one_group_alone_is_sorted():
    module = convnet()
    nested = nl.nest(module, IMAGES, sort="norm", only=("second",), **PLAIN)
    assert torch.equal(nested.module.first.weight, module.first.weight)
    assert descending(nested.module.second.weight.detach().abs().sum((1, 2, 3)).tolist())


def test_an_example_of_zeros_is_enough():
    module = convnet()
    nested = nl.nest(module, torch.zeros_like(IMAGES), sort="norm", **PLAIN).eval()
    assert_same(outputs(nested, (IMAGES,)), outputs(module, (IMAGES,)), "sorted at full width")


def test_inputs_that_must_be_positive():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.last(F.relu(self.first(x.sqrt())))

    module, x = randomise(Root(), seeded()), torch.rand(5, 4, generator=seeded(), dtype=torch.float64)
    nested = nl.nest(module, x, sort="norm", **PLAIN).eval()
    assert descending(nested.module.first.weight.detach().abs().sum(1).tolist())
    assert_same(outputs(nested, (x,)), outputs(module, (x,)), "sorted at full width")


def test_layers_and_bits_keep_their_order():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)) for _ in range(3))
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            for block in self.blocks:
                x = x + block(x)
            return self.head(x)

    module, x = randomise(Residual(), seeded()), torch.randn(5, 4, generator=seeded(), dtype=torch.float64)
    nested = nl.nest(module, x, sort="norm", **PLAIN | {"kinds": ("neuron", "layer", "bit")}).eval()
    plain = nl.nest(module, x, sort="none", **PLAIN | {"kinds": ("neuron", "layer", "bit")}).eval()
    assert [group.drops for group in nested.groups] == [group.drops for group in plain.groups]
    assert descending(nested.module.blocks[1][0].weight.detach().abs().sum(1).tolist())
    assert_same(outputs(nested, (x,)), outputs(plain, (x,)), "sorted at full width")


# ---- groups that keep their order


class Halves(nn.Module):
    """Two halves of one layer that go through different functions: a unit can't change sides."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        y = self.first(x)
        y = torch.cat([F.relu(y[:, :3]), torch.tanh(y[:, 3:])], 1)
        return self.last(F.relu(self.second(y)))


def test_a_group_whose_places_have_a_meaning_keeps_its_order():
    module, x = randomise(Halves(), seeded()), torch.randn(5, 4, generator=seeded(), dtype=torch.float64)
    assert {group.name for group in nl.nest(module, x, **PLAIN).groups.free} == {"first", "second"}
    with pytest.warns(UserWarning, match=r"^first: not sorted, .*would change what the network computes"):
        nested = nl.nest(module, x, sort="norm", **PLAIN).eval()
    assert torch.equal(nested.module.first.weight, module.first.weight)
    assert descending(nested.module.second.weight.detach().abs().sum(1).tolist())
    assert_same(outputs(nested, (x,)), outputs(module, (x,)), "sorted at full width")


def test_a_group_with_a_buffer_that_is_not_saved_keeps_its_order():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
            self.register_buffer("scale", torch.rand(8, generator=seeded(3)), persistent=False)

        def forward(self, x):
            return self.last(F.relu(self.second(F.relu(self.first(x)) * self.scale)))

    module, x = randomise(Scaled(), seeded()), torch.randn(5, 4, generator=seeded(), dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"^first: not sorted, .*buffer scale .*not saved"):
        nested = nl.nest(module, x, sort="norm", **PLAIN).eval()
    assert descending(nested.module.second.weight.detach().abs().sum(1).tolist())
    assert_same(outputs(nested, (x,)), outputs(module, (x,)), "sorted at full width")


# ---- taylor


def batches(number=3):
    for seed in range(number):
        inputs = torch.randn(4, 3, 8, 8, generator=seeded(10 + seed), dtype=torch.float64)
        yield inputs, torch.randint(4, (4,), generator=seeded(20 + seed))


def changes(module, layer, loss):
    """The squared slope of the loss as the weights of one unit grow, by central differences, averaged over batches."""
    step, found = 1e-5, []
    weight = module.get_parameter(f"{layer}.weight")
    for unit in range(weight.shape[0]):
        values = []
        for inputs, targets in batches():
            at = []
            for factor in (1 + step, 1 - step):
                other = deepcopy(module).eval()
                with torch.no_grad():
                    other.get_parameter(f"{layer}.weight")[unit] *= factor
                    at.append(float(loss(other(inputs), targets)))
            values.append(((at[0] - at[1]) / (2 * step)) ** 2)
        found.append(sum(values) / len(values))
    return torch.tensor(found, dtype=torch.float64)


def squared(output, targets):
    return (output.softmax(1) - F.one_hot(targets, 4)).square().mean()


@pytest.mark.parametrize("loss", [None, squared], ids=["cross_entropy", "own"])
def test_taylor_is_the_slope_of_the_loss(loss):
    module = convnet().train()
    before = deepcopy(module.state_dict())
    nested = nl.nest(module, IMAGES, sort="taylor", batches=batches(), loss=loss, **PLAIN).eval()
    for layer, bias in {"first": "norm1.bias", "second": "second.bias", "hidden": "hidden.bias"}.items():
        importance = changes(module, layer, loss or F.cross_entropy)
        order = importance.argsort(descending=True)
        assert importance.sort().values.diff().min() > 1e-6 * importance.max(), "no two units are alike"
        assert torch.equal(nested.module.get_parameter(bias), module.get_parameter(bias)[order])
    module.eval()
    assert_same(outputs(nested, (IMAGES,)), outputs(module, (IMAGES,)), "sorted at full width")
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in [*module.parameters(), *nested.parameters()])


def test_taylor_of_weights_that_are_not_trained():
    module = convnet().requires_grad_(False)
    nested = nl.nest(module, IMAGES, sort="taylor", batches=batches(), **PLAIN)
    trained = nl.nest(module.requires_grad_(True), IMAGES, sort="taylor", batches=list(batches()), **PLAIN)
    assert not nested.module.first.weight.requires_grad
    assert torch.equal(nested.module.hidden.weight, trained.module.hidden.weight)


def test_taylor_with_inputs_by_name():
    module = convnet()
    named = [({"x": inputs}, targets) for inputs, targets in batches()]
    nested = nl.nest(module, {"x": IMAGES}, sort="taylor", batches=named, **PLAIN)
    other = nl.nest(module, IMAGES, sort="taylor", batches=batches(), **PLAIN)
    assert torch.equal(nested.module.first.weight, other.module.first.weight)


# ---- what is sorted when


def trained(module):
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.num_batches_tracked += 1
    return module


def is_sorted(nested):
    return descending(nested.module.first.weight.detach().abs().sum((1, 2, 3)).tolist())


def test_auto_sorts_what_has_been_trained():
    assert not is_sorted(nl.nest(convnet(), IMAGES, **PLAIN))
    assert is_sorted(nl.nest(trained(convnet()), IMAGES, **PLAIN))
    assert not is_sorted(nl.nest(trained(convnet()), IMAGES, sort="none", **PLAIN))


def test_auto_leaves_a_network_without_batch_norms_alone():
    module = randomise(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), seeded())
    nested = nl.nest(module, torch.randn(2, 4, dtype=torch.float64), **PLAIN)
    assert torch.equal(nested.module[0].weight, module[0].weight)


def test_made_with_says_how_a_network_was_sorted():
    assert "sort" not in nl.nest(convnet(), IMAGES, **PLAIN).made_with, "as in folders from before there was sorting"
    assert nl.nest(trained(convnet()), IMAGES, **PLAIN).made_with["sort"] == "norm"
    assert nl.nest(convnet(), IMAGES, sort="taylor", batches=batches(), **PLAIN).made_with["sort"] == "taylor"


@pytest.mark.parametrize("weights", [None, "gaussian"])
@pytest.mark.parametrize("sort", ["norm", "taylor"])
def test_a_sorted_network_is_loaded_as_it_was_saved(tmp_path, sort, weights):
    module = trained(convnet())
    options = {"sort": sort, "batches": batches() if sort == "taylor" else None}
    nested = nl.nest(module, IMAGES, **PLAIN | {"weights": weights}, **options).eval()
    nl.save(nested, tmp_path / "one")
    with warnings.catch_warnings(action="error"):
        loaded = nl.load(tmp_path / "one", trained(randomise(ConvNet(), seeded(5))))
    assert loaded.made_with == nested.made_with
    for cut in (0.3, 0.5, 1.0):
        with torch.no_grad(), nested.at(cut), loaded.at(cut):
            assert torch.equal(loaded(IMAGES), nested(IMAGES))
    nl.save(loaded, tmp_path / "two")
    for name in ("groups.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


# ---- wrong arguments


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"sort": "size"}, ArgumentError, r"^sort: got 'size'.*auto, norm, taylor, none"),
        ({"sort": None}, ArgumentError, r"^sort: got None"),
        ({"sort": "taylor"}, ArgumentError, r"^batches: got None.*\(inputs, targets\)"),
        ({"sort": "norm", "batches": []}, ArgumentError, r"^batches: got a list with sort='norm'.*left out"),
        ({"loss": squared}, ArgumentError, r"^loss: got a function with sort='auto'.*left out"),
        ({"sort": "taylor", "batches": []}, ArgumentError, r"^batches: got none.*at least one"),
        ({"sort": "taylor", "batches": [IMAGES]}, ArgumentError, r"^batch: got a Tensor.*a pair"),
        ({"sort": "taylor", "batches": [(IMAGES,)]}, ArgumentError, r"^batch: got a tuple of 1.*a pair"),
        (
            {"sort": "taylor", "batches": batches(), "loss": lambda output, _: output.mean(1)},
            ShapeError,
            r"^loss: got a tensor of shape \(4,\)",
        ),
        ({"sort": "taylor", "batches": batches(), "loss": lambda *_: 1.0}, ShapeError, r"^loss: got a float"),
        (
            {"sort": "taylor", "batches": batches(), "loss": lambda output, _: output.mean() * torch.inf},
            NonFiniteError,
            r"^loss: got -?inf on batch 1",
        ),
        (
            {"sort": "taylor", "batches": batches(), "loss": lambda output, _: output.detach().mean()},
            ArgumentError,
            r"^loss: got one without a gradient",
        ),
    ],
)
def test_wrong_arguments_are_named(options, error, said):
    with pytest.raises(error, match=said):
        nl.nest(convnet(), IMAGES, **PLAIN, **options)
