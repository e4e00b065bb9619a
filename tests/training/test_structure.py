"""What a folder holds of what ``nest`` decided: nothing is exported to load it, and no code of a graph in it runs."""

import shutil
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_networks import (
    QUICK,
    labels,
    nested_mlp,
    nested_norms,
    normal,
    norms_module,
    outputs_at,
    same_tensors,
)
from test_saving import Attention, disturbed
from torch import nn

import nestling as nl
from nestling import commands
from nestling.errors import RunError
from nestling.reading.group import Groups
from nestling.search import Searching
from nestling.storage.files import read_tensors, write_tensors

CUTS = (0.1, 0.5, 1.0)
MODEL = "model.safetensors"
TOKENS = labels(7, 4, 5)
KINDS = ("head", "neuron", "layer")
DISCOVERY = ("nestling.network.discovery", "nestling.network.nest")


class Shuffled(nn.Module):
    """Rows in no regular order: the channels of one layer stand before and after those of another, and are shuffled."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(1, 6, 1), nn.Conv2d(1, 3, 1)
        self.mixed, self.last = nn.Conv2d(9, 6, 1), nn.Conv2d(6, 3, 1)

    def forward(self, x):
        first, rest = self.left(x).split([2, 4], 1)
        mixed = self.mixed(torch.cat([first, self.right(x), rest], 1).relu()).relu()
        return self.last(mixed.unflatten(1, (2, 3)).transpose(1, 2).flatten(1, 2)).mean((2, 3))


NETWORKS = {
    "mlp": (lambda: nl.models.build("mlp", hidden=[6, 5], in_features=4, num_classes=3), normal(3, 4), {}),
    "norms": (norms_module, normal(4, 1, 4, 4), {"private": (0.5,)}),
    "bits": (norms_module, normal(4, 1, 4, 4), {"kinds": ("channel", "bit"), "bits": nl.Bits(ends=True)}),
    "rescaled": (norms_module, normal(4, 1, 4, 4), {"rescale": True, "order": "geometric"}),
    "shuffled": (Shuffled, normal(4, 1, 4, 4), {"weights": None}),
    "attention": (Attention, TOKENS, {"kinds": KINDS}),
    "attention, ivon": (Attention, TOKENS, {"kinds": KINDS, "weights": "ivon"}),
}


@pytest.fixture(params=NETWORKS)
def network(request, tmp_path):
    """A nested network, the module it was made of, its example, and a folder that holds it."""
    make, example, options = NETWORKS[request.param]
    torch.manual_seed(0)
    nested = disturbed(nl.nest(make(), example, num_blocks=3, num_always=1, **options).eval())
    nl.save(nested, tmp_path / "run")
    return nested, make(), example, tmp_path / "run"


@pytest.fixture
def no_export(monkeypatch):
    """Exporting and finding groups again are errors; returns what was called."""
    called = []

    def forbidden(name):
        def call(*_, **__):
            called.append(name)
            raise AssertionError(f"{name} was called on the way to a network that was stored")

        return call

    monkeypatch.setattr(torch.export, "export", forbidden("torch.export.export"))
    for place in DISCOVERY:
        monkeypatch.setattr(import_module(place), "discover", forbidden(f"{place}.discover"))
    for name in ("export_graph", "recorded_graph", "trace", "CutCheck"):
        monkeypatch.setattr(import_module("nestling.network.discovery"), name, forbidden(name))
    return called


def test_all_that_was_decided_comes_back(network, no_export):
    nested, module, example, place = network
    loaded = nl.load(place, module)
    assert no_export == []
    assert same_tensors(loaded.state_dict(), nested.state_dict())
    assert repr(loaded.groups) == repr(nested.groups)
    for own, other in zip(loaded.groups, nested.groups, strict=True):
        assert replace(own, slices=()) == replace(other, slices=())
        for piece, like in zip(own.slices, other.slices, strict=True):
            assert (piece.tensor, piece.axis, piece.reads) == (like.tensor, like.axis, like.reads)
            assert torch.equal(piece.rows, like.rows)
    assert loaded.private.cuts == nested.private.cuts
    assert loaded.calls_layers == nested.calls_layers
    for given, expected in zip(outputs_at(loaded, example, CUTS), outputs_at(nested, example, CUTS), strict=True):
        assert torch.equal(given, expected)


def test_draws_steps_and_smaller_networks_are_the_same(network):
    nested, module, example, place = network
    found = []
    for own in (nested, nl.load(place, module)):
        torch.manual_seed(3)
        own.train()
        own(example).square().sum().backward()
        gradients = {name: p.grad for name, p in own.named_parameters() if p.grad is not None}
        with torch.no_grad(), own.eval().drawing(), own.at(0.5):
            drawn = own(example)
        small = nl.extract(own, 0.5)
        found.append((gradients | {"": drawn, " ": small(example)}, own.drawn, small.state_dict()))
    assert found[0][1] == found[1][1]
    assert len(found[0][0]) > 6
    assert same_tensors(found[0][0], found[1][0])
    assert same_tensors(found[0][2], found[1][2])


def test_what_was_loaded_is_saved_as_it_was(network, tmp_path):
    _, module, _, place = network
    nl.save(nl.load(place, module), tmp_path / "again")
    for name in ("groups.json", MODEL):
        assert (place / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_graph_takes_other_batches_after_loading(tmp_path):
    nested = nl.nest(Attention(), TOKENS, num_blocks=3, num_always=1).eval()
    nl.save(nested, tmp_path)
    more = labels(7, 9, 3, seed=4)
    for given, expected in zip(
        outputs_at(nl.load(tmp_path, Attention()), more, CUTS), outputs_at(nested, more, CUTS), strict=True
    ):
        assert torch.equal(given, expected)


def test_groups_are_those_of_the_file_whatever_discovery_says_now(network, monkeypatch):
    """A version of nestling, or of torch, that names groups otherwise and finds them in another order."""
    nested, module, example, place = network
    real = import_module("nestling.network.nest").discover

    def otherwise(*given):
        groups, runner = real(*given)
        return Groups([replace(own, name=f"other.{own.name}") for own in reversed(groups)]), runner

    for name in DISCOVERY:
        monkeypatch.setattr(import_module(name), "discover", otherwise)
    assert any(own.name.startswith("other.") for own in nl.nest(module, example, weights=None).groups)
    loaded = nl.load(place, module)
    assert [own.name for own in loaded.groups] == [own.name for own in nested.groups]
    for given, expected in zip(outputs_at(loaded, example, CUTS), outputs_at(nested, example, CUTS), strict=True):
        assert torch.equal(given, expected)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that commands can take up: a network of the library's, and data that a file holds."""
    place = tmp_path_factory.mktemp("commands")
    noise = np.random.default_rng(0)
    np.savez(place / "mine.npz", x=noise.integers(0, 256, (60, 2, 2), dtype=np.uint8), y=np.arange(60) % 3)
    np.save(place / "inputs.npy", np.zeros((2, 1, 2, 2), np.float32))
    nl.train(nested_mlp(), str(place / "mine.npz"), QUICK.but(cuts=(0.5,)), out=place / "run", quiet=True)
    return place


def test_no_command_exports_to_load_a_run(run, no_export, monkeypatch):
    monkeypatch.setattr(import_module("nestling.running.cost"), "MEASURED_SECONDS", 0.0)
    searching = import_module("nestling.commands.searching")  # what extract writes is a graph, which is exported
    monkeypatch.setattr(searching, "plain_files", lambda network, *_: SimpleNamespace(module=network))
    monkeypatch.setattr(searching, "write_small", lambda *_, **__: None)
    place = run / "run"
    assert nl.open_run(place).log
    assert "class" in commands.predict(place, run / "inputs.npy", 0.5, 1, 0.8)
    assert commands.evaluate(place, (0.5, 1.0), samples=1)
    assert commands.search(place, "macs", Searching(num_points=3))
    assert commands.extract(place, cut=0.5)
    assert no_export == []


def test_a_folder_of_the_first_format_is_exported_again(tmp_path, no_export):
    """So that the tests above can fail."""
    nl.save(nested_mlp(), tmp_path)
    tensors, record = read_tensors(tmp_path / MODEL)
    write_tensors(tmp_path / MODEL, tensors, {key: own for key, own in record.items() if key != "made"})
    with pytest.raises(RunError):
        nl.load(tmp_path)
    assert no_export


def test_regular_rows_take_no_tensors(tmp_path):
    nl.save(nested_norms(), tmp_path / "norms")
    assert not [name for name in read_tensors(tmp_path / "norms" / MODEL)[0] if name.startswith("lists.")]
    nl.save(nl.nest(Shuffled(), normal(4, 1, 4, 4), num_blocks=3, num_always=1), tmp_path / "shuffled")
    lists = {n: t for n, t in read_tensors(tmp_path / "shuffled" / MODEL)[0].items() if n.startswith("lists.")}
    assert lists
    assert all(own.dtype == torch.int32 for own in lists.values())


class Answer(dict):
    """Outputs of a type that JSON can't name."""


def test_a_graph_that_no_file_can_hold_is_found_again(tmp_path):
    from torch.utils import _pytree as pytree

    class Answering(Attention):
        def forward(self, tokens):
            return Answer(scores=super().forward(tokens))

    def flat(answer):
        return list(answer.values()), list(answer)

    pytree.register_pytree_node(Answer, flat, lambda own, keys: Answer(zip(keys, own, strict=True)))
    nested = nl.nest(Answering(), TOKENS, num_blocks=3, num_always=1).eval()
    nl.save(nested, tmp_path)
    assert read_tensors(tmp_path / MODEL)[1]["made"] is None
    assert torch.equal(nl.load(tmp_path, Answering())(TOKENS)["scores"], nested(TOKENS)["scores"])


# Graphs that were made by hand.


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    place = tmp_path_factory.mktemp("graph")
    torch.manual_seed(0)
    nl.save(nl.nest(Attention(), TOKENS, num_blocks=3, num_always=1, kinds=KINDS), place)
    return place


MARK = "__import__('pathlib').Path('mark').write_text('run')"


def calls(plan, start="aten."):
    return [entry for entry in plan["nodes"] if entry.get("call", "").startswith(start)]


def calling(name):
    return lambda plan: calls(plan, "aten.linear.default")[0].update(call=name)


def with_kwargs(name, value=None):
    return lambda plan: calls(plan)[2].update(kwargs={name: value})


def with_arg(value):
    return lambda plan: calls(plan, "aten.linear.default")[0]["args"].__setitem__(0, value)


def named(name):
    return lambda plan: calls(plan)[0].update(name=name)


def setting(key, value):
    return lambda plan: plan.update({key: value})


def inner(key, number, **values):
    return lambda plan: plan[key][number].update(values)


def adding(*entries):
    return lambda plan: plan["nodes"].__setitem__(slice(-1, -1), entries)


def allocating(size):
    return adding({"name": "big", "call": "aten.zeros.default", "args": [[size]]})


FORGED = {
    **{
        f"calls {name!r}": calling(name)
        for name in (
            *("aten.nothing.default", "aten.add.Nothing", "aten.linear", "aten.from_file.default", "aten.save.default"),
            *(
                "os.system.x",
                "builtins.eval",
                "operator.attrgetter",
                "operator.methodcaller",
                "operator.pow",
                "torch.load",
            ),
            *("torch.ops.load_library", "load_library.x.y", "aten.__class__.__init__", "aten.linear.__class__"),
            *("profiler._record_function_enter_new.default", "debugprims.load_tensor.default", "", "a\nb.c.d", 3, None),
        )
    },
    "code for a keyword": with_kwargs(f"x={MARK}, y"),
    "a keyword on two lines": with_kwargs("x\ny"),
    "a keyword that there is not": with_kwargs("out"),
    "code for a name": named(f"x = {MARK}\n    y"),
    "a name with a dot": named("a.b"),
    "a word of the language for a name": named("import"),
    "a number for a name": named(3),
    "an endless name": named("x" * 10**6),
    "code for an input": setting("inputs", [{"tuple": []}, {"dict": {f"x={MARK}": 0}}]),
    "the same input twice": setting("inputs", [{"tuple": [0, 0]}, {"dict": {}}]),
    "inputs that are not there": setting("inputs", [{"tuple": [0, 1]}, {"dict": {}}]),
    "inputs in a set": setting("inputs", [{"set": [0]}, {"dict": {}}]),
    "outputs that are not there": setting("outputs", 1),
    "outputs of nothing": setting("outputs", None),
    "endlessly deep outputs": setting("outputs", {"tuple": [{"tuple": [{"tuple": [3]}]}]}),
    "a tensor that is not there": inner("nodes", 0, tensor="x"),
    "code for a tensor": inner("nodes", 0, tensor=MARK),
    "a constant that is not there": adding({"name": "other", "constant": 7}),
    "no nodes": setting("nodes", []),
    "no output": lambda plan: plan["nodes"].pop(),
    "two outputs": lambda plan: plan["nodes"].append(plan["nodes"][-1]),
    "a node of the future": with_arg({"node": 10**6}),
    "a node from the end": with_arg({"node": -1}),
    "a text for a tensor": with_arg("x"),
    "a dictionary": with_arg({"a": 1, "b": 2}),
    "an unknown object": with_arg({"object": "os.system"}),
    "no type of numbers": with_arg({"dtype": "load"}),
    "a module for a type": with_arg({"dtype": "hub"}),
    "a device of nobody": with_arg({"device": "nowhere"}),
    "no number": with_arg({"float": "x"}),
    "a number too large": with_arg(2**40),
    "too many arguments": lambda plan: calls(plan)[0]["args"].extend([None] * 30),
    "no arguments": lambda plan: calls(plan)[0].pop("args"),
    "a text for a call on sizes": adding({"name": "big", "call": "operator.mul", "args": ["x", 2**31]}),
    "a division by nothing, for which torch would print the graph": adding(
        {"name": "big", "call": "operator.floordiv", "args": [1, 0]}
    ),
    "a terabyte": allocating(10**12),
    "a size below nothing": allocating(-3),
    "no axes": setting("axes", []),
    "an axis of other positions": inner("axes", 0, size=5),
    "an axis of endless positions": inner("axes", 0, size=2**31, always=0, parts=[{"layer.linear1": [0, [2**31, 0]]}]),
    "an axis of nobody": inner("axes", 0, parts=[{"x": [0, [2, 1]]}]),
    "an axis without a part": inner("axes", 0, parts=[]),
    "sizes of no axis": lambda plan: plan["sizes"][0].__setitem__(2, 99),
    "sizes of no node": lambda plan: plan["sizes"][0].__setitem__(0, 9999),
    "sizes of no argument": lambda plan: plan["sizes"][0].__setitem__(1, ["nothing"]),
    "sizes beyond an argument": lambda plan: plan["sizes"][0].__setitem__(1, ["size", 99]),
    "sizes of a name": lambda plan: plan["sizes"][0].__setitem__(0, 0),
    "no branches": setting("branches", {}),
    "branches of no nodes": lambda plan: next(iter(plan["branches"].values())).update(nodes=[10**6]),
    "branches of no tensors": lambda plan: next(iter(plan["branches"].values())).update(tensors=["x"]),
    **{
        f"without {key}": lambda plan, key=key: plan.pop(key)
        for key in "nodes inputs outputs axes sizes branches".split()
    },
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=[name[:60] for name in FORGED])
def test_a_graph_made_by_hand(graph, tmp_path, monkeypatch, capfd, forge):
    """Refused in one line, and nothing in it is run or printed: not in reading it, nor in making code of it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(graph, tmp_path / "run")
    tensors, record = read_tensors(graph / MODEL)
    forge(record["made"]["plan"])
    write_tensors(tmp_path / "run" / MODEL, tensors, record)
    for trust in (False, True):
        with pytest.raises(RunError) as caught:
            nl.load(tmp_path / "run", Attention(), trust=trust)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1500
    assert not (tmp_path / "mark").exists()
    assert capfd.readouterr() == ("", "")


def test_a_graph_as_it_was_saved_is_read(graph):
    """So that the forgeries above are refused for what they are."""
    nl.load(graph, Attention())


def test_operations_of_other_libraries_run_only_where_they_are_trusted(tmp_path):
    library = torch.library.Library("nestling_test_7c2", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
    library.impl("twice", lambda x: 2 * x, "CompositeImplicitAutograd", allow_override=True)

    class Foreign(Attention):
        def forward(self, tokens):
            return super().forward(tokens) + 0 * torch.ops.nestling_test_7c2.twice(self.output.bias)

    nested = nl.nest(Foreign(), TOKENS, num_blocks=3, num_always=1, kinds=KINDS, weights=None).eval()
    nl.save(nested, tmp_path)
    with pytest.raises(RunError, match="trust=True"):
        nl.load(tmp_path, Foreign())
    assert torch.equal(nl.load(tmp_path, Foreign(), trust=True)(TOKENS), nested(TOKENS))
