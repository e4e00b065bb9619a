"""Orders that mean something on trained transformers: sorted heads and units, layers to drop, bits."""

import pytest
import torch
from oracle import TOLERANCE, outputs
from pretrained_kinds import HEADS, KINDS, Called, made

import nestling as nl

PRODUCING = {
    "bert": "bert.encoder.layer.0.attention.self.{}.weight query key value",
    "vit": "vit.layers.0.attention.{}.weight q_proj k_proj v_proj",
}


def answers(module, name, size, batch=3):
    inputs = KINDS[name].inputs(size, batch)
    return outputs(Called(module, tuple(inputs)), tuple(inputs.values()))


def nested_of(name, **options):
    module = made(name)
    return module, nl.nest(module, KINDS[name].inputs(KINDS[name].sizes[0], 3), weights=None, num_always=1, **options)


@pytest.mark.parametrize("name", KINDS)
def test_sorting_moves_heads_and_units_and_changes_nothing_at_full_width(name):
    module, nested = nested_of(name, sort="norm")
    moved = {
        key for key, value in nested.module.state_dict().items() if not torch.equal(value, module.state_dict()[key])
    }
    groups = [group for group in nested.groups.free if moved & set(group.tensors)]
    assert {group.kind for group in groups} == {"head", "neuron"}
    for size in KINDS[name].sizes:
        torch.testing.assert_close(
            nested.eval()(**KINDS[name].inputs(size, 3)), answers(module, name, size), rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize("name", PRODUCING)
def test_the_first_head_is_the_one_with_the_largest_weights(name):
    module, nested = nested_of(name, sort="norm")
    pattern, *parts = PRODUCING[name].split()
    names = [pattern.format(part) for part in parts]
    sizes = sum(module.get_parameter(name).abs().unflatten(0, (HEADS, -1)).sum((1, 2)) for name in names)
    for key in names:
        heads = module.get_parameter(key).unflatten(0, (HEADS, -1))[sizes.argsort(descending=True)]
        assert torch.equal(nested.module.get_parameter(key), heads.flatten(0, 1))


@pytest.mark.parametrize("name", KINDS)
def test_layers_can_be_dropped_from_the_end_and_the_rest_computes_on(name):
    module, nested = nested_of(name, kinds=("layer",))
    (group,) = nested.groups.free
    with nested.eval().at({group.name: group.size - 1}):
        found = nested(**KINDS[name].inputs(KINDS[name].sizes[0], 3))
    last = [path for path, layer in module.named_modules() if type(layer).__name__ in ("Linear", "Conv1D")]
    last = [path for path in last if any(part.isdigit() for part in path.split("."))][-1]
    for parameter in module.get_submodule(last).parameters():
        torch.nn.init.zeros_(parameter)
    expected = answers(module, name, KINDS[name].sizes[0])
    tolerance = 1e-7 if name == "timm" else TOLERANCE  # its graph resamples positions in single precision
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("name", "linear"), [("bert", 14), ("gpt2", 8), ("llama", 15)])
def test_all_linear_layers_but_the_first_and_last_have_bits_beside_heads_and_units(name, linear):
    module, nested = nested_of(name, kinds=("head", "neuron", "bit"))
    bits = [group for group in nested.groups.free if group.kind == "bit"]
    assert len(bits) == linear - 2
    errors = []
    for kept in (1, 4):
        with nested.eval().at({group.name: kept for group in bits}):
            output = nested(**KINDS[name].inputs(KINDS[name].sizes[1], 2))
        errors.append((output - answers(module, name, KINDS[name].sizes[1], 2)).square().mean())
    assert errors[1] < errors[0], "more levels are closer to the weights"
