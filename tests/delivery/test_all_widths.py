"""One ONNX file of every width computes, at each, what the extracted network does, and as the smaller file does."""

import io
import json
import logging
import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nestling as nl
from nestling.delivery import all_widths_model
from nestling.errors import ArgumentError, NestlingError
from nestling.reading import make_cut
from nestling.running import axes_of, kept_of

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

ROUNDING = 1e-5


@pytest.fixture(autouse=True)
def quiet():
    """The exporter logs what it lacks."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(action="ignore"):
        yield
    logging.disable(logging.NOTSET)


class Mixed(nn.Module):
    """A residual sum, a concatenation, depthwise and transposed convolutions, chunks, and rows of a flattened image."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.branch = nn.Sequential(nn.Conv2d(8, 12, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.depthwise = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False), nn.BatchNorm2d(12))
        self.back = nn.Conv2d(12, 8, 1)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.norm = nn.BatchNorm2d(6)
        self.gates = nn.Conv2d(14, 8, 2, stride=2)
        self.head = nn.Sequential(nn.Linear(4 * 9, 10, bias=False), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3))

    def forward(self, x):
        stem = self.stem(x)
        both = stem + self.back(F.relu(self.depthwise(self.branch(stem))))
        wide = torch.cat([F.relu(self.norm(self.up(both))), F.interpolate(both, scale_factor=2)], 1)
        values, gates = self.gates(wide).chunk(2, 1)
        return self.head((values * gates.sigmoid()).flatten(1))


class Attention(nn.Module):
    """torch's own attention, whose heads are cut, and a stream with a norm over it."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(5, 12)
        self.norm = nn.LayerNorm(12)
        self.attention = nn.MultiheadAttention(12, 4, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        x = self.stem(x)
        y = self.norm(x)
        return self.head(x + self.attention(y, y, y, need_weights=False)[0])


class SharedKeys(nn.Module):
    """Attention in which two heads share each key and value."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(5, 4 * 2 * 3), nn.Linear(5, 4 * 3), nn.Linear(5, 4 * 3)
        self.head = nn.Linear(4 * 2 * 3, 2)

    def forward(self, x):
        query, key, value = (layer(x).unflatten(2, (-1, 3)).transpose(1, 2) for layer in self.layers())
        found = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        return self.head(found.transpose(1, 2).flatten(2))

    def layers(self):
        return self.query, self.key, self.value


class Unknown(nn.Module):
    """An operation that ONNX does not have."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 3, 1))

    def forward(self, x):
        return torch.special.bessel_j0(self.layers(x))


def nested_of(module, *shape, **options):
    """The module nested in four blocks, with norms that have been used and weights that are not their first ones."""
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d | nn.BatchNorm1d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias)
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 1.5)
    return nl.nest(
        module, torch.randn(2, *shape), **{"weights": None, "num_blocks": 4, "num_always": 1} | options
    ).eval()


def session_of(model, sizes=None):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for name, size in (sizes or {}).items():
        options.add_free_dimension_override_by_name(name, size)
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def answer(session, x, sizes=None):
    names = [own.name for own in session.get_inputs()]
    given = {names[0]: x.numpy()} | {name: np.zeros(size, np.uint8) for name, size in (sizes or {}).items()}
    return session.run(None, given)[0]


def smaller_file(network, x):
    with torch.no_grad():
        return torch.onnx.export(
            network, (x[:2],), dynamo=True, external_data=False, verbose=False, dynamic_shapes=({0: "batch"},)
        ).model_proto


def record_of(model):
    return json.loads(next(entry.value for entry in model.metadata_props if entry.key == "nestling"))


def check(nested, model, x, bits=True):
    """Each row, given at a call and fixed when loaded; at the last row the smaller file has the same bits."""
    called, widths = session_of(model), record_of(model)["widths"]
    for row in widths["table"]:
        small = nl.extract(nested, row["cut"])
        expected = small(x).detach().numpy()
        fixed = answer(session_of(model, row["sizes"]), x, row["sizes"])
        for found in (answer(called, x, row["sizes"]), fixed):
            assert np.abs(found - expected).max() <= ROUNDING * np.abs(expected).max()
    if bits:
        assert np.array_equal(answer(session_of(smaller_file(small, x)), x), fixed)


def test_lenet_at_cuts_in_the_table_and_beside_it(tmp_path):
    nested = nested_of(nl.models.build("lenet_5_caffe"), 1, 28, 28, num_blocks=5)
    searched = {"features.0": 1, "features.3": 4, "head.0": 3}
    model = all_widths_model(nested, {"0.5": 0.5, "searched": searched, "1": 1.0}, each_group=True, quality={"1": 0.9})
    x = torch.randn(3, 1, 28, 28)
    check(nested, model, x)
    sizes = {"width_of_features_0": 12, "width_of_features_3": 10, "width_of_head_0": 400}
    beside = nl.extract(nested, {"features.0": 3, "features.3": 1, "head.0": 4})(x).detach().numpy()
    found = answer(session_of(model), x, sizes)
    assert np.abs(found - beside).max() <= ROUNDING * np.abs(beside).max()
    rows = record_of(model)["widths"]["table"]
    assert [row["name"] for row in rows] == ["0.5", "searched", "1"]
    assert rows[1]["cut"] == searched
    assert rows[1]["sizes"] == {"width_of_features_0": 4, "width_of_features_3": 40, "width_of_head_0": 300}
    assert rows[1]["params"] == sum(own.numel() for own in nl.extract(nested, searched).parameters())
    assert [row.get("quality") for row in rows] == [None, None, 0.9]
    onnx.save(model, tmp_path / "lenet.onnx")
    expected = nl.extract(nested, 0.5)(x).detach().numpy()
    for opened in (nl.runtime.open(tmp_path / "lenet.onnx", cut=0.5), nl.runtime.open(tmp_path / "lenet.onnx")):
        given = {} if opened.cut else {"cut": 0.5}
        found = next(iter(opened.predict(x.numpy(), **given).outputs.values()))
        assert np.abs(found - expected).max() <= ROUNDING * np.abs(expected).max()


def test_norms_of_their_own_at_each_width():
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    nested = nested_of(module, 3, 8, 8, private=[0.5])
    with torch.no_grad():
        for parameter in nested.private.parameters():
            parameter.add_(torch.rand_like(parameter))
    x = torch.randn(5, 3, 8, 8)
    nl.recalibrate(nested, [torch.randn(16, 3, 8, 8)], 0.5)
    model = all_widths_model(nested, [0.5, 1.0])
    check(nested, model, x)
    widths = record_of(model)["widths"]
    assert widths["symbols"] == {"width": {"units": {"0": 2, "3": 2}, "most": 4}}
    assert [row["sizes"] for row in widths["table"]] == [{"width": 2, "row": 1}, {"width": 4, "row": 2}]


def test_a_network_of_many_operations():
    nested = nested_of(Mixed(), 3, 3, 3, where="all")
    model = all_widths_model(nested, [0.25, 0.75, 1.0])
    check(nested, model, torch.randn(3, 3, 3, 3))
    assert record_of(model)["widths"]["row"] is None


def test_heads_of_attention():
    nested = nested_of(Attention(), 6, 5, where="all")
    cuts = [{"stem": 2, "attention": 3}, {"stem": 4, "attention": 1}]
    check(nested, all_widths_model(nested, cuts), torch.randn(3, 6, 5), bits=False)


def test_heads_that_share_keys():
    nested = nested_of(SharedKeys(), 6, 5)
    assert nested.groups.free[0].size == 4
    check(nested, all_widths_model(nested, [0.25, 1.0]), torch.randn(3, 6, 5), bits=False)


def test_openvino_runs_a_file_that_is_reshaped():
    openvino = pytest.importorskip("openvino")
    nested = nested_of(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), 6)
    model, x = all_widths_model(nested, [0.5, 1.0]), torch.randn(3, 6)
    core = openvino.Core()
    read = core.read_model(io.BytesIO(model.SerializeToString()))
    read.reshape({"width": [2]})
    found = core.compile_model(read, "CPU")({0: x.numpy(), "width": np.zeros(2, np.uint8)})[0]
    expected = nl.extract(nested, 0.5)(x).detach().numpy()
    assert np.abs(found - expected).max() <= 1e-2 * np.abs(expected).max()  # it may compute in half precision


def grouped_up():
    return nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.ConvTranspose2d(8, 8, 2, groups=8), nn.Conv2d(8, 3, 1))


def normed_groups():
    return nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 3, 1))


@pytest.mark.parametrize(
    ("module", "options", "cuts", "named"),
    [
        (grouped_up, {}, [0.5, 1.0], "transposed convolution .* at 2. Export each cut"),
        (normed_groups, {}, [0.5, 1.0], "fixes a size that a cut changes .width.* Export each cut"),
        (
            Unknown,
            {},
            [0.5, 1.0],
            r"can't write aten.special_bessel_j0.default with open sizes at .*bessel_j0.* Export each cut",
        ),
        (normed_groups, {}, [0.5], "at least two different cuts"),
        (grouped_up, {"kinds": ("bit",), "bits": nl.Bits(ends=True)}, [0.5, 1.0], "the same bits in one file"),
    ],
)
def test_networks_that_one_file_cannot_hold_are_refused_in_one_line(module, options, cuts, named):
    nested = nested_of(module(), 3, 4, 4, **options)
    with pytest.raises((ArgumentError, NestlingError)) as refused:
        all_widths_model(nested, cuts)
    assert "\n" not in str(refused.value)
    assert re.search(named, str(refused.value)), str(refused.value)


def test_parts_of_axes_are_the_slices_that_a_cut_takes():
    nested = nested_of(Mixed(), 3, 3, 3, where="all")
    whole = nested.tensors()
    parts = axes_of(nested, whole)
    for fraction in (0.25, 0.5, 0.75):
        with nested.at(fraction):
            cut = nested.cut
        units = {group.name: group.units(cut[group.name]) for group in nested.groups.free}
        found = dict(whole)
        for (name, axis), own in parts.items():
            found[name] = kept_of(found[name], axis, own, units)
        for name, tensor in nested.tensors_at(cut).items():
            assert torch.equal(found[name], tensor), name


def test_each_cut_has_the_temperature_and_the_thresholds_of_its_calibration(tmp_path):
    nested, x = nested_of(nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 2)), 5), torch.randn(3, 5)
    nested.likelihood = nl.prediction.Gaussian(std=0.3)

    def fitted(cut, temperature):
        options = {"num_examples": 10, "likelihood": "gaussian", "samples": 0}
        return nl.prediction.Calibration(
            temperature, {0.9: 2 * temperature}, cut=make_cut(nested.groups, cut), **options
        )

    path = tmp_path / "numbers.onnx"
    nl.export(nested, path, widths=[0.5, 0.75, 1.0], calibration=[fitted(1.0, 4.0), fitted(0.5, 9.0)])
    for cut, temperature, threshold in ((0.5, 9.0, 18.0), (0.75, 1.0, None), (1.0, 4.0, 8.0)):
        called = nl.runtime.open(path).predict(x.numpy(), cut=cut)
        for found in (nl.runtime.open(path, cut=cut).predict(x.numpy()), called):
            assert np.allclose(found["std"], 0.3 * temperature**0.5, rtol=1e-5)
            assert found.about["temperature"] == temperature
            if threshold is None:
                with pytest.raises(ArgumentError, match="there is none"):
                    found.interval(0.9)
            else:
                low, high = found.interval(0.9)
                assert np.allclose(high - low, 2 * threshold * found["std"], rtol=1e-5)
    with pytest.raises(ArgumentError, match="not in the file"):
        nl.export(nested, path, widths=[0.5, 1.0], calibration=fitted(0.25, 1.0))
    with pytest.raises(ArgumentError, match="one calibration for a file of one cut"):
        nl.export(nested, path, cut=0.5, calibration=[fitted(0.5, 1.0)])
