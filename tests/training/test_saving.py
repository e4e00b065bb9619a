"""Networks that were saved and loaded, against themselves, and folders that do not fit."""

import shutil
import sys
from copy import deepcopy

import pytest
import torch
from small_networks import images, labels, nested_mlp, nested_norms, normal, norms_module, outputs_at, same_tensors
from torch import nn

import nestling as nl
from nestling.errors import NestlingError, RunError
from nestling.storage.files import read_tensors, write_tensors
from nestling.training import load, save

CUTS = (0.1, 0.5, 1.0)
SMALL = {"num_blocks": 3, "num_always": 1}


class Tied(nn.Module):
    """Integers in, and an output layer that is the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.hidden = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 6))
        self.output = nn.Linear(6, 7)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        return self.output(self.hidden(self.embedding(tokens)).mean(1))


class Twice(nn.Module):
    """One layer in two places, under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.middle = nn.Linear(6, 6)
        self.again = self.middle
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        x = torch.relu(self.middle(torch.relu(self.first(x))))
        return self.last(torch.relu(self.again(x)))


class Attention(nn.Module):
    """A transformer, which runs as a graph."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.output = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.output(self.layer(self.embedding(tokens)).mean(1))


class Named(nn.Module):
    """Inputs by name, one of which is no tensor, beside a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, left, right, sign=1.0):
        return self.last(torch.relu(self.first(left + sign * self.scale * right)))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, left, right):
        return self.last(torch.relu(self.first(left - 2 * right)))


NAMED = {"left": normal(3, 4), "right": normal(3, 4, seed=1), "sign": -1.0}
CASES = {
    "plain": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), normal(3, 4), {"weights": None}),
    "gaussian": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), normal(3, 4), {}),
    "double": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).double(), normal(3, 4).double(), {}),
    "norms": (norms_module, normal(4, 1, 4, 4), {}),
    "uniform": (norms_module, normal(4, 1, 4, 4), {"order": "uniform", "weights": None, "rescale": True}),
    "tied": (Tied, labels(7, 4, 5), {}),
    "twice": (Twice, normal(3, 4), {}),
    "attention": (Attention, labels(7, 4, 5), {"kinds": ("head", "neuron")}),
    "all kinds": (Attention, labels(7, 4, 5), {}),
    "named": (Named, NAMED, {}),
    "one linear": (lambda: nn.Linear(4, 3), normal(3, 4), {}),
}


def disturbed(nested):
    """The network with other numbers everywhere: what was not saved can't come out right by chance."""
    torch.manual_seed(5)
    with torch.no_grad():
        for name, tensor in nested.state_dict().items():
            if tensor.is_floating_point():
                tensor.add_(0.3 * torch.rand_like(tensor))
            elif name.endswith("num_batches_tracked"):
                tensor.add_(3)
    return nested


@pytest.mark.parametrize(("make", "example", "options"), CASES.values(), ids=CASES.keys())
def test_a_network_that_was_loaded_computes_the_same(tmp_path, make, example, options):
    torch.manual_seed(0)
    nested = nl.nest(make(), example, **SMALL | options).eval()
    before = outputs_at(nested, example, [1.0])
    disturbed(nested)
    if any(isinstance(part, nn.BatchNorm2d) for part in nested.modules()):
        for cut in (0.5, 1.0):
            nl.recalibrate(nested, [normal(8, 1, 4, 4, seed=7)], cut)
    save(nested, tmp_path / "run")
    torch.manual_seed(1)
    loaded = load(tmp_path / "run", make())
    assert not loaded.training
    assert same_tensors(loaded.state_dict(), nested.state_dict())
    assert loaded.statistics.keys() == nested.statistics.keys()
    assert all(same_tensors(loaded.statistics[cut], nested.statistics[cut]) for cut in nested.statistics)
    assert repr(loaded.groups) == repr(nested.groups)
    for given, expected in zip(outputs_at(loaded, example, CUTS), outputs_at(nested, example, CUTS), strict=True):
        assert torch.equal(given, expected)
    assert not torch.equal(before[0], outputs_at(nested, example, [1.0])[0])  # so what was loaded matters


def test_statistics_of_a_cut_are_used_after_loading(tmp_path):
    nested, x = nested_norms().eval(), images().tensors[0]
    before = outputs_at(nested, x, CUTS)
    nl.recalibrate(nested, [3 * x + 1], 0.5)
    save(nested, tmp_path)
    after = outputs_at(load(tmp_path, norms_module(seed=1)), x, CUTS)
    assert [torch.equal(a, b) for a, b in zip(after, before, strict=True)] == [True, False, True]


def test_ties_are_still_ties_after_loading(tmp_path):
    save(nl.nest(Tied(), labels(7, 4, 5), **SMALL), tmp_path)
    loaded = load(tmp_path, Tied())
    assert loaded.module.output.weight is loaded.module.embedding.weight


def test_a_network_of_the_librarys_is_built_by_its_name(tmp_path):
    nested = disturbed(nested_mlp()).eval()
    save(nested, tmp_path)
    loaded = load(tmp_path)
    assert torch.equal(loaded(normal(5, 4)), nested(normal(5, 4)))
    assert loaded.made_with == nested.made_with
    save(loaded, tmp_path / "again")
    for name in ("groups.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_draws_of_a_loaded_network_are_the_same(tmp_path):
    nested = disturbed(nested_mlp())
    save(nested, tmp_path)
    found = []
    for network in (nested, load(tmp_path)):
        torch.manual_seed(3)
        found.append(torch.stack([network.train()(normal(5, 4)) for _ in range(5)]))
    assert torch.equal(*found)
    assert not torch.equal(found[0][0], found[0][1])


CODE = """
from pathlib import Path
from torch import nn

def make(size=6):
    note = Path({note!r})
    note.write_text((note.read_text() if note.exists() else "") + "x")
    return nn.Sequential(nn.Linear(4, size), nn.ReLU(), nn.Linear(size, 3))
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A module of the user's, that notes each time it is called in a file beside it."""
    note = tmp_path / "called"
    (tmp_path / "my_networks_9d1.py").write_text(CODE.format(note=str(note)))
    monkeypatch.syspath_prepend(tmp_path)
    yield note
    sys.modules.pop("my_networks_9d1", None)


def test_code_of_the_users_runs_only_where_it_is_trusted(tmp_path, code):
    nested = nl.nest(nl.models.build("my_networks_9d1:make", size=9), normal(3, 4), **SMALL).eval()
    save(nested, tmp_path / "run")
    code.unlink()
    del sys.modules["my_networks_9d1"]
    with pytest.raises(RunError, match="trust=True"):
        load(tmp_path / "run")
    assert "my_networks_9d1" not in sys.modules
    assert not code.exists()
    x = normal(5, 4)
    assert torch.equal(load(tmp_path / "run", trust=True)(x), nested(x))
    assert code.read_text() == "x"
    module = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))
    assert torch.equal(load(tmp_path / "run", module)(x), nested(x))
    assert code.read_text() == "x"


def test_code_that_is_gone(tmp_path, code):
    save(nl.nest(nl.models.build("my_networks_9d1:make"), normal(3, 4), **SMALL), tmp_path / "run")
    del sys.modules["my_networks_9d1"]
    (tmp_path / "my_networks_9d1.py").unlink()
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    with pytest.raises(NestlingError, match="my_networks_9d1"):
        load(tmp_path / "run", trust=True)


def test_a_network_of_unknown_origin_must_be_passed(tmp_path):
    save(nested_norms(), tmp_path)
    with pytest.raises(RunError, match=r"load\(folder, module\)"):
        load(tmp_path)


def test_orders_and_rules_of_the_users_need_the_nested_network(tmp_path):
    def order(num_blocks, num_always):
        return nl.distributions.Uniform(num_blocks, num_always=num_always)

    def make():
        return nl.nest(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), normal(3, 4), order=order, **SMALL)

    nested = disturbed(make()).eval()
    assert nested.made_with is None
    save(nested, tmp_path)
    with pytest.raises(RunError, match=r"load\(folder, nested\)"):
        load(tmp_path, nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)))
    loaded = load(tmp_path, make())
    assert torch.equal(loaded(normal(5, 4)), nested(normal(5, 4)))


WRONG = {
    "other hidden size": nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3)),
    "other outputs": nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)),
    "no bias": nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, bias=False)),
    "other names": nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Identity(), nn.Linear(6, 3)),
    "no module": 3,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    place = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    save(nl.nest(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), normal(3, 4), **SMALL), place)
    return place


@pytest.mark.parametrize("module", WRONG.values(), ids=WRONG.keys())
def test_a_module_that_does_not_fit(saved, module):
    with pytest.raises(RunError) as caught:
        load(saved, module)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "module", [nn.Linear(5, 3), nn.Linear(4, 3).double(), nn.Conv2d(1, 3, 3), nn.Embedding(7, 3)], ids=repr
)
def test_a_module_that_does_not_run_on_the_example(saved, module):
    with pytest.raises(RunError):
        load(saved, module)


def test_a_nested_network_that_does_not_fit(saved):
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    for options in ({"num_blocks": 2, "num_always": 1}, SMALL | {"weights": None}, SMALL | {"order": "uniform"}):
        other = nl.nest(module, normal(3, 4), **options)
        before = deepcopy(other.state_dict())
        with pytest.raises(RunError):
            load(saved, other)
        assert same_tensors(other.state_dict(), before)


def test_an_example_with_the_same_tensor_twice(tmp_path):
    x = normal(3, 4)
    save(nl.nest(TwoInputs(), (x, x), **SMALL), tmp_path)
    assert torch.equal(load(tmp_path, TwoInputs()).example[0][1], x)


def test_tensors_that_overlap(tmp_path):
    class Overlapping(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
            self.register_buffer("table", torch.arange(5.0))
            self.register_buffer("rest", self.table[1:])

        def forward(self, x):
            return self.last(torch.relu(self.first(x * self.rest + self.table[0])))

    save(nl.nest(Overlapping(), normal(3, 4), **SMALL), tmp_path)


def test_an_input_called_tensor(tmp_path):
    class Called(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, tensor):
            return self.last(torch.relu(self.first(tensor)))

    save(nl.nest(Called(), {"tensor": normal(3, 4)}, **SMALL), tmp_path)
    load(tmp_path, Called())


def test_a_network_of_the_librarys_in_double_precision(tmp_path):
    nested = nested_mlp().double().eval()
    save(nested, tmp_path)
    x = normal(5, 4, dtype=torch.float64)
    assert torch.equal(load(tmp_path)(x), nested(x))


def test_a_module_whose_code_has_moved_down_a_line(tmp_path, monkeypatch):
    text = "import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    def __init__(self):\n"
    text += "        super().__init__()\n        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)\n"
    text += "    def forward(self, x):\n        h = torch.fft.rfft(self.first(x)).abs()\n"
    text += "        return self.last(torch.cat([h, h[..., 1:3]], -1)).cumsum(-1)\n"
    modules = {}
    for name, content in (("moved_a", text), ("moved_b", text.replace("class", "# a comment\nclass"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "my_net_41c.py").write_text(content)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / name)
            sys.modules.pop("my_net_41c", None)
            modules[name] = __import__("my_net_41c").Net()
            if name == "moved_a":
                save(nl.nest(modules[name], normal(3, 4), **SMALL), tmp_path / "run")
            else:
                load(tmp_path / "run", modules[name])
    sys.modules.pop("my_net_41c", None)


def damaged(saved, place, part, change):
    """A copy of a folder in which a part of the record beside the weights is changed, checksum and all."""
    shutil.copytree(saved, place)
    tensors, record = read_tensors(place / "model.safetensors")
    write_tensors(place / "model.safetensors", tensors, record | {part: change(record[part])})
    return place


def without(*path):
    def change(content):
        inner = content
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
        return content

    return change


def having(value, *path):
    def change(content):
        if not path:
            return value
        inner = content
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return content

    return change


DAMAGE = {
    **{f"network without {key}": ("network", without(key)) for key in ("model", "nest", "example")},
    "network is a list": ("network", having([])),
    "network is nothing": ("network", having(None)),
    "example without args": ("network", without("example", "args")),
    "example is a text": ("network", having("x", "example")),
    "example of another tensor": ("network", having([{"tensor": 7}], "example", "args")),
    "groups is nothing": ("groups", having(None)),
    "no group": ("groups", having([])),
    "a group without slices": ("groups", without(0, "slices")),
    "a group of another size": ("groups", having(5, 0, "size")),
    "a huge size": ("network", having(10**12, "nest", "num_blocks")),
    "no cuts": ("cuts", having(None)),
    "cuts of other groups": ("cuts", having([{"x": 3}])),
}
FIRST_DAMAGE = DAMAGE | {
    "nest is a number": ("network", having(3, "nest")),
    "nest with other options": ("network", having({"depth": 3}, "nest")),
    "nest with a bad option": ("network", having(0, "nest", "num_blocks")),
    "nest with odd blocks": ("network", having("many", "nest", "num_blocks")),
    "other blocks": ("network", having(2, "nest", "num_blocks")),
}
"""Options of ``nest`` matter where it is called again, for folders of the first format."""
PIECE = (0, "slices", 0)
STRUCTURE_DAMAGE = DAMAGE | {
    "rows beyond the end": ("groups", having([1, [6, 1]], *PIECE, "rows")),
    "rows before the start": ("groups", having([4, [6, -1]], *PIECE, "rows")),
    "too few rows": ("groups", having([0, [5, 1]], *PIECE, "rows")),
    "endless rows": ("groups", having([0, [10**6, 0], [10**6, 0], [10**6, 0]], *PIECE, "rows")),
    "a long way between rows": ("groups", having([0, [2, 2**62]], *PIECE, "rows")),
    "rows in half": ("groups", having([0, [6, 0.5]], *PIECE, "rows")),
    "rows of truth": ("groups", having([False, [6, True]], *PIECE, "rows")),
    "rows of a tensor that is not there": ("groups", having("lists.7", *PIECE, "rows")),
    "rows of a weight": ("groups", having("network.module.0.bias", *PIECE, "rows")),
    "rows without steps": ("groups", having([0, [6]], *PIECE, "rows")),
    "rows of two groups": ("groups", lambda groups: [*groups, groups[0] | {"name": "other"}]),
    "no axis": ("groups", having(2, *PIECE, "axis")),
    "an axis from the end": ("groups", having(-1, *PIECE, "axis")),
    "no such tensor": ("groups", having("5.weight", *PIECE, "tensor")),
    "reads maybe": ("groups", having(1, *PIECE, "reads")),
    "another kind": ("groups", having("layers", 0, "kind")),
    "a name twice": ("groups", having("2", 0, "name")),
    "more blocks than units": ("groups", having(10**9, 0, "num_blocks")),
    "more always than blocks": ("groups", having(4, 0, "num_always")),
    "never always": ("groups", having(0, 0, "num_always")),
    "free and frozen": ("groups", having("so", 0, "frozen_because")),
    "drops what is no layer": ("groups", having(["add"] * 6, 0, "drops")),
    "quantises what is not there": ("groups", having(["x"], 0, "quantises")),
    "more to a group": ("groups", having(1, 0, "tensors")),
    "a group that others rely on is gone": ("groups", lambda groups: groups[1:]),
    "made of a list": ("made", having([])),
    **{
        f"made without {key}": ("made", without(key))
        for key in ("order", "rescale", "bits", "private", "layers", "plan")
    },
    "another order": ("made", having("uniform", "order")),
    "an order of code": ("made", having("os:system", "order")),
    "rescaled a little": ("made", having(0.5, "rescale")),
    "bits of nothing": ("made", having({"how": "x"}, "bits")),
    "private where there are no norms": ("made", having([{}], "private")),
    "no variational layer": ("made", having({}, "layers")),
    "another posterior": ("made", having(["ivon", "local"], "layers", "0")),
    "no posterior": ("made", having(["x", "local"], "layers", "0")),
    "no sampling": ("made", having(["gaussian", "x"], "layers", "0")),
    "a layer that is not there": ("made", having(["gaussian", "local"], "layers", "7")),
    "a layer without weights": ("made", having(["gaussian", "local"], "layers", "1")),
    "a plan of nothing": ("made", having({}, "plan")),
}


@pytest.mark.parametrize(("part", "change"), STRUCTURE_DAMAGE.values(), ids=STRUCTURE_DAMAGE.keys())
def test_a_folder_that_does_not_hang_together(saved, tmp_path, part, change):
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    load(saved, module)
    with pytest.raises(RunError) as caught:
        load(damaged(saved, tmp_path / "damaged", part, change), module)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("part", "change"), FIRST_DAMAGE.values(), ids=FIRST_DAMAGE.keys())
def test_a_folder_of_the_first_format_that_does_not_hang_together(saved, tmp_path, part, change):
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    first = of_first_format(saved, tmp_path / "first")
    load(first, module)
    with pytest.raises(RunError) as caught:
        load(damaged(first, tmp_path / "damaged", part, change), module)
    assert "\n" not in str(caught.value)


def of_first_format(saved, place):
    """A copy of a folder without what the first format did not have."""
    shutil.copytree(saved, place)
    tensors, record = read_tensors(place / "model.safetensors")
    del record["made"]
    for group in record["groups"]:
        del group["inner"]
        group["slices"] = [{key: piece[key] for key in ("tensor", "axis")} for piece in group["slices"]]
    write_tensors(place / "model.safetensors", tensors, record)
    return place


@pytest.mark.parametrize(
    "model",
    [
        *({}, {"name": "mlp"}, {"name": "mpl", "options": {}}, 3, "mlp", {"name": 3, "options": {}}),
        {"name": "mlp", "options": {"hidden": [6, 60_000, 60_000, 5]}},  # 14 GB, if it were built
        {"name": "mlp", "options": {"hidden": [10**15]}},
        {"name": "mlp", "options": {"hidden": "abc"}},
        {"name": "mlp", "options": {"hidden": [-3]}},
        {"name": "os:system", "options": {"command": "false"}},
    ],
)
def test_a_model_that_can_not_be_built(tmp_path, model):
    save(nested_mlp(), tmp_path / "good")
    with pytest.raises(NestlingError):
        load(damaged(tmp_path / "good", tmp_path / "bad", "network", having(model, "model")))


def test_the_weights_file_is_all_there_is_to_it(saved, tmp_path):
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    shutil.copytree(saved, tmp_path / "copy")
    (tmp_path / "copy" / "groups.json").unlink()
    assert same_tensors(load(tmp_path / "copy", module).state_dict(), load(saved, module).state_dict())
    (tmp_path / "copy" / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"model\.safetensors"):
        load(tmp_path / "copy", module)


def test_no_folder(tmp_path):
    with pytest.raises(RunError, match="nowhere"):
        load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError):
        save(nested_mlp(), tmp_path / "file")
    with pytest.raises(RunError):
        save(nested_mlp(), tmp_path / "file" / "run")
