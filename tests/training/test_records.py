"""What a run, its data and its errors say of themselves."""

import pytest
import torch
from small_networks import QUICK, examples, nested_mlp, normal
from torch.utils.data import DataLoader

import nestling as nl
from nestling.errors import DivergenceError, NonFiniteError
from nestling.training import train


def loaders(size):
    return DataLoader(examples(), size, shuffle=True), DataLoader(examples(seed=3), size)


def test_the_batch_size_of_the_callers_loader_is_recorded(tmp_path):
    run = train(nested_mlp(), loaders(6), QUICK.but(epochs=1, batch_size=64), out=tmp_path, quiet=True)
    assert run.recipe.batch_size == 6
    assert run.log[0]["step"] == 4
    assert nl.open_run(tmp_path).recipe.batch_size == 6


def test_a_run_is_one_line(tmp_path):
    run = train(nested_mlp(), loaders(8), QUICK.but(epochs=1), out=tmp_path / "a", quiet=True)
    assert repr(run) == f"Run({tmp_path}/a: data of yours, categorical, epoch 1 of 1; 2 calibrated cuts)"


def test_data_is_one_line():
    data = nl.data.load("digits", hold_out=(8, 9))
    assert repr(data).startswith("Data(digits: classification of 1 x 8 x 8 inputs, 8 outputs; train ")
    assert "held_out 354" in repr(data)
    assert len(repr(data)) < 200


def test_half_precision_is_named_where_it_overflows():
    nested = nested_mlp(weights=None).eval()
    for parameter in nested.module.parameters():
        parameter.data.abs_().add_(300)
    nested.half()
    with pytest.raises(NonFiniteError, match=r"in float16.*ends at 65,504: use bfloat16 or float32"):
        nl.predict(nested, normal(3, 4).abs().half())


def test_half_precision_is_named_where_training_overflows():
    nested = nested_mlp(weights=None)
    for parameter in nested.module.parameters():
        parameter.data.abs_().add_(300)
    x = normal(24, 4).abs().half()
    data = torch.utils.data.TensorDataset(x, torch.zeros(24, dtype=torch.long))
    with pytest.raises(DivergenceError, match=r"output of layer .*float16.*65,504"):
        train(nested.half(), (data, data), QUICK, quiet=True)
