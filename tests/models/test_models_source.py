"""Where a network came from: by a name of ours or a function of the user's, and what is remembered of it."""

import json
from copy import deepcopy

import pytest
import torch
from torch import nn

from nestling import models
from nestling.errors import ArgumentError
from nestling.models import Source, build, options_for, source_of

CODE = """
from torch import nn

class Outer:
    @staticmethod
    def make(size=3):
        return nn.Linear(size, 2)

def make(size=3, *, bias=True):
    return nn.Linear(size, 2, bias=bias)

def any_option(**options):
    return nn.Linear(len(options), 2)

def in_features(in_features, num_classes):
    return nn.Linear(in_features, num_classes)

def no_module():
    return 3

number = 3
"""


@pytest.fixture(autouse=True)
def my_code(tmp_path, monkeypatch):
    (tmp_path / "my_models_5e7.py").write_text(CODE)
    (tmp_path / "my_broken_5e7.py").write_text("import there_is_no_such_module_5e7\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_name_of_ours_is_remembered_with_its_options():
    source = source_of(build("mlp", hidden=(8, 4), in_features=3))
    assert source == Source("mlp", {"hidden": [8, 4], "in_features": 3})
    assert not source.is_code


def test_what_is_remembered_builds_the_same_network():
    for name in models.names():
        options = {"width": 0.1}
        torch.manual_seed(0)
        module = build(name, **options)
        source = json.loads(json.dumps({"name": source_of(module).name, "options": dict(source_of(module).options)}))
        torch.manual_seed(0)
        again = build(source["name"], **source["options"])
        state = module.state_dict()
        assert again.state_dict().keys() == state.keys()
        assert all(torch.equal(tensor, state[key]) for key, tensor in again.state_dict().items())


def test_copies_remember_too_and_other_networks_nothing():
    module = build("mlp", hidden=(4,), in_features=3)
    assert source_of(deepcopy(module)) == source_of(module)
    assert source_of(nn.Sequential(module)) is None
    assert source_of(nn.Linear(2, 2)) is None


def test_what_is_remembered_is_not_part_of_the_state():
    module = build("mlp", hidden=(4,), in_features=3)
    assert not [key for key in module.state_dict() if "built" in key]


def test_options_are_remembered_as_they_were():
    hidden = [4]
    module = build("mlp", hidden=hidden, in_features=3)
    hidden.append(5)
    assert source_of(module).options["hidden"] == [4]


@pytest.mark.parametrize("place", ["my_models_5e7:make", "my_models_5e7:Outer.make"])
def test_a_function_of_the_users(place):
    module = build(place, size=5)
    assert module.in_features == 5
    assert source_of(module) == Source(place, {"size": 5})
    assert source_of(module).is_code


def test_a_class_of_the_users():
    module = build("torch.nn:Linear", in_features=4, out_features=2)
    assert module.weight.shape == (2, 4)


def test_options_that_json_has_not_are_not_remembered():
    assert source_of(build("my_models_5e7:any_option", a=object())) is None
    assert source_of(build("my_models_5e7:any_option", a=float("nan"))) is None
    assert source_of(build("my_models_5e7:any_option", a=1.5, b=None)).options == {"a": 1.5, "b": None}


def test_options_that_json_would_change_are_not_remembered():
    assert source_of(build("my_models_5e7:any_option", a={1: 2})) is None


BAD = [
    "no_such_module_5e7:make",
    "my_broken_5e7:make",
    "my_models_5e7:missing",
    "my_models_5e7:number",
    "my_models_5e7:Outer.missing",
    "my_models_5e7:",
    ":make",
    ":",
    "my_models_5e7:no_module",
    "my_models_5e7:make:make",
]


@pytest.mark.parametrize("place", BAD)
def test_a_place_where_there_is_no_function_that_gives_a_module(place):
    with pytest.raises(ArgumentError) as caught:
        build(place)
    assert caught.value.name == "model"
    assert place in str(caught.value)


@pytest.mark.parametrize("place", [".my_models_5e7:make", "..:make"])
def test_a_relative_place(place):
    with pytest.raises(ArgumentError):
        build(place)


def test_an_unknown_option_of_the_users_function():
    with pytest.raises(ArgumentError, match="got depth"):
        build("my_models_5e7:make", depth=3)
    assert build("my_models_5e7:any_option", depth=3).in_features == 1


@pytest.mark.parametrize("place", ["torch.nn:Linear", "my_models_5e7:in_features"])
def test_an_option_that_is_needed(place):
    with pytest.raises(ArgumentError):
        build(place)


def test_an_error_inside_the_users_function_is_theirs():
    with pytest.raises(TypeError, match=r"str|int|empty"):
        build("my_models_5e7:make", size="three")


def test_options_that_fit_a_network_to_data():
    assert options_for("mlp", (1, 8, 8), 10) == {"in_features": 64, "num_classes": 10}
    assert options_for("vgg11", (3, 32, 32), 7) == {"in_channels": 3, "num_classes": 7}
    assert options_for("resnet14", (3, 32, 32), 7) == {"in_channels": 3, "num_classes": 7}
    assert options_for("my_models_5e7:make", (3,), 2) == {}
    assert options_for("my_models_5e7:in_features", (3, 4), 2) == {"in_features": 12, "num_classes": 2}
    for name in models.names():
        shape = models.example_shape(name)
        module = build(name, **options_for(name, shape, 3), width=0.1)
        assert module(torch.zeros(2, *shape)).shape[1] == 3
