"""Recipes: what they refuse, and their way through JSON."""

import json
import math
from dataclasses import FrozenInstanceError, fields

import pytest

from nestling.errors import ArgumentError
from nestling.training import Recipe

NO_NUMBER = ["1", None, True, math.nan, math.inf]
NO_COUNT = ["1", None, True, 0, -1, 2.5]
TOO_MANY_DRAWS, TOO_MANY = [10_001, 10**9], [10**6 + 1, 10**30]
NO_SHARE = [*NO_NUMBER, -0.1, 1.1]
NO_WORD = ["", "Adam", None, 1, ["adamw"]]
NO_SHARES = [[0.5], 0.5, "0.5", (0.0,), (1.1,), (0.5, "1"), (math.nan,), (True,)]
BAD = {
    "epochs": [*NO_COUNT, *TOO_MANY],
    "batch_size": [*NO_COUNT, *TOO_MANY],
    "draws": [*NO_COUNT, *TOO_MANY_DRAWS],
    "anchors": [*NO_COUNT[1:], "automatic", 1001],
    "samples": [*NO_COUNT, *TOO_MANY_DRAWS],
    "recalibration_batches": [*NO_COUNT, *TOO_MANY],
    "patience": ["1", True, 0, 2.5],
    "step_back": ["1", True, -1, 2.5],
    "seed": ["1", None, True, -1, 2**31, 0.5],
    "optimiser": NO_WORD,
    "schedule": NO_WORD,
    "weight_kl": NO_WORD,
    "objective": NO_WORD,
    "keep": NO_WORD,
    "estimator": [*NO_WORD, "enumerate"],
    "precision": NO_WORD,
    "lr": [*NO_NUMBER, 0, -1e-3],
    "order_lr": [*NO_NUMBER, 0.0],
    "noise_lr": [*NO_NUMBER, 0.0, -1e-3],
    "clip": [*NO_NUMBER, 0.0],
    "lr_factor": [*NO_NUMBER, 0.0],
    "momentum": NO_SHARE,
    "lr_warm_up": NO_SHARE,
    "kl_warm_up": NO_SHARE,
    "distil": [*NO_SHARE, "automatic"],
    "soften": [*NO_NUMBER, 0, -1.0, "automatic"],
    "explore": NO_SHARE,
    "coupled": NO_SHARE,
    "sandwich": NO_SHARE,
    "order_weight": ["1", True, math.nan, math.inf, 0.0, -1.0],
    "prior_keep": [*NO_SHARE, 0.0, 1.0],
    "weight_decay": [*NO_NUMBER, -1e-3],
    "kappa": [*NO_NUMBER, -1.0, "automatic"],
    "milestones": NO_SHARES,
    "cuts": NO_SHARES,
    "temperature": [[1.0, 0.3], 0.5, (0.0, 1.0), (1.0, math.inf), (1.0, None)],
}
CHANGED = {
    "step_back": 3,
    "epochs": 7,
    "batch_size": 3,
    "seed": 2**31 - 1,
    "optimiser": "sgd",
    "lr": 0.5,
    "order_lr": 0.25,
    "noise_lr": 1e-4,
    "momentum": 0.0,
    "weight_decay": 1e-4,
    "clip": 1.0,
    "schedule": "step",
    "lr_warm_up": 1.0,
    "milestones": (0.3, 0.6, 1.0),
    "lr_factor": 0.2,
    "kappa": 0.0,
    "kl_warm_up": 0.0,
    "weight_kl": "bn3",
    "objective": "us_net",
    "distil": 1.0,
    "soften": 4.0,
    "keep": "last",
    "prior_keep": 0.5,
    "estimator": "relaxed",
    "anchors": 2,
    "draws": 4,
    "explore": 0.0,
    "coupled": 1.0,
    "sandwich": 1.0,
    "order_weight": None,
    "temperature": (2.0, 0.1),
    "cuts": (1 / 3,),
    "patience": 2,
    "samples": 1,
    "recalibration_batches": 1,
    "precision": "bfloat16",
    "tensorboard": True,
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values], ids=str
)
def test_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(ArgumentError) as caught:
        Recipe(**{name: value})
    assert caught.value.name == name
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("weight_decay", "auto"), ("tensorboard", "yes"), ("tensorboard", None)])
def test_a_bad_value_that_slips_through(name, value):
    with pytest.raises(ArgumentError):
        Recipe(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", (1.0,)), ("temperature", ()), ("cuts", ()), ("cuts", (0.5,) * 1001)]
)
def test_a_tuple_of_the_wrong_length_is_refused_by_name(name, value):
    with pytest.raises(ArgumentError) as caught:
        Recipe(**{name: value})
    assert caught.value.name == name


def test_every_field_is_covered_here():
    names = {field.name for field in fields(Recipe)}
    assert CHANGED.keys() == names
    assert BAD.keys() | {"tensorboard"} == names


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(**CHANGED)], ids=["default", "changed"])
def test_json_and_back(recipe):
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict(), allow_nan=False)))
    assert again == recipe
    assert hash(again) == hash(recipe)
    assert again.to_dict() == recipe.to_dict()


@pytest.mark.parametrize(("name", "value"), CHANGED.items())
def test_but_changes_one_entry(name, value):
    before = Recipe()
    after = before.but(**{name: value})
    assert getattr(after, name) == value != getattr(before, name)
    assert {own for own in CHANGED if getattr(after, own) != getattr(before, own)} == {name}
    assert after != before


def test_what_depends_on_a_teacher_is_settled():
    """With one a network is tuned: sgd, and most of the loss from the teacher."""
    alone, taught = (Recipe().settled(has_teacher=own) for own in (False, True))
    assert (alone.optimiser, alone.distil, alone.soften) == ("adamw", 0.5, 1.0)
    assert (taught.optimiser, taught.distil, taught.soften) == ("sgd", 0.9, 2.0)
    for settled in (alone, taught):
        assert settled.but(optimiser="auto", distil="auto", soften="auto", anchors="auto") == Recipe()
    first = Recipe(optimiser="adamw", distil=0.0, soften=3.0, anchors=2)
    for chosen in (first, Recipe(optimiser="sgd", distil=1.0, soften=1.5, anchors=1)):
        assert chosen.settled(has_teacher=True) == chosen.settled(has_teacher=False) == chosen


def test_but_checks_too():
    with pytest.raises(ArgumentError):
        Recipe().but(lr=-1.0)


def test_an_unknown_entry_is_refused():
    with pytest.raises(ArgumentError, match="learning_rate"):
        Recipe.from_dict({"learning_rate": 0.1})


def test_from_dict_checks_values():
    with pytest.raises(ArgumentError):
        Recipe.from_dict(Recipe().to_dict() | {"cuts": [0.5, 2.0]})


@pytest.mark.parametrize("saved", [None, 3, []])
def test_from_dict_of_something_else(saved):
    with pytest.raises(ArgumentError):
        Recipe.from_dict(saved)


def test_frozen():
    with pytest.raises(FrozenInstanceError):
        Recipe().lr = 0.1
