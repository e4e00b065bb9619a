"""Everything that grows, grown as a stranger would: a toy of each kind in its registry, used from end to end."""

import json
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nestling as nl
from nestling.data.parts import WHOLE, labelled
from nestling.data.sources import SOURCES, Layout, OfficialSet
from nestling.delivery.formats import FORMATS, FileFormat
from nestling.delivery.options import FormatName
from nestling.distributions.gates import Gate
from nestling.distributions.noise import normal_noise
from nestling.distributions.orders import ORDERS, Order
from nestling.distributions.weights import (
    LOG_ALPHA_BOUNDS,
    POSTERIORS,
    PosteriorName,
    WeightPosterior,
    to_log_alpha,
)
from nestling.errors import ArgumentError, NestlingError
from nestling.network import Nesting
from nestling.pruning.methods import METHODS, Method
from nestling.pruning.options import MethodName
from nestling.running.agreement import difference
from nestling.running.layers import LAYERS, LayerType, VariationalLayer, sizes_of_weight
from nestling.runtime.session import Session
from nestling.runtime.sessions import SESSIONS
from nestling.search.costs import COSTS, CostType
from nestling.search.options import CostName, StrategyName
from nestling.search.strategies import STRATEGIES, Strategy
from nestling.training.loop import Loop
from nestling.training.optimisers import OPTIMISERS, OptimiserType, StateEntry
from nestling.training.recipe import OptimiserName

sys.path.insert(0, str(Path(__file__).parent / "training"))
from small_networks import QUICK, examples, normal, same_tensors

X = normal(7, 4, seed=5)


def module():
    torch.manual_seed(0)
    return nl.models.build("mlp", hidden=[6, 5], in_features=4, num_classes=3)


def nested(network=None, **options):
    return nl.nest(network or module(), normal(2, 4), **{"num_blocks": 3, "num_always": 1} | options)


def trained(model, out=None, recipe=QUICK):
    torch.manual_seed(1)
    nl.train(model, (examples(), examples(seed=3)), recipe, out=out, quiet=True)
    return model


def answers(model, cut):
    with torch.no_grad(), model.at(cut):
        return model(X)


def check_cuts_and_file(model, folder):
    """It is read back as it was, is drawn from, and can be taken out at a cut."""
    again = nl.load(folder)
    for cut in (0.34, 1.0):
        assert torch.equal(answers(again, cut), answers(model, cut))
        torch.testing.assert_close(nl.extract(model, cut)(X), answers(model, cut))
        assert torch.isfinite(nl.predict(model, X, cut=cut, samples=2).probs).all()


# An order


class Steep(Order):
    """log p(width) is linear in the width, with a slope that is learned."""

    def __init__(self, num_blocks, num_always):
        super().__init__(num_blocks, num_always)
        self.slope = nn.Parameter(torch.zeros(()))

    def log_probs(self):
        return torch.log_softmax(self.slope * torch.arange(self.num_widths), -1)


def test_an_order(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setitem(ORDERS, "steep", Steep)
        model = trained(nested(order="steep"), tmp_path)
        assert all(isinstance(own, Steep) and own.slope != 0 for own in model.orders.values())
        check_cuts_and_file(model, tmp_path)
    with pytest.raises(NestlingError, match="steep"):
        nl.load(tmp_path)


# A posterior


class Softplus(WeightPosterior):
    """w = theta + softplus(rho) eps under the prior N(0, 1)."""

    rates = {"rho": "distributions"}  # noqa: RUF012

    def __init__(self, mean, rho):
        super().__init__(mean, "rho", rho)

    @classmethod
    def from_weight(cls, weight):
        return cls(weight, nn.Parameter(torch.full_like(weight, -3.0)))

    def bounded_log_alpha(self):
        return to_log_alpha(self.mean, 2 * self.std().log()).clamp(*LOG_ALPHA_BOUNDS)

    @staticmethod
    def variance_of(mean, scale):
        std = F.softplus(scale)
        return std.square(), lambda gradient: (None, gradient * 2 * std * torch.sigmoid(scale))

    def std(self):
        return F.softplus(self.rho)

    def noise_scale(self):
        return self.std()

    def perturbed(self, noise):
        return self.mean + self.std() * noise

    def divergences(self, divergence):
        return 0.5 * (self.std().square() + self.mean.square() - 1) - self.std().log()


@pytest.mark.parametrize("sampling", ["local", "shared"])
def test_a_posterior(monkeypatch, tmp_path, sampling):
    with monkeypatch.context() as patch:
        patch.setitem(POSTERIORS, "softplus", Softplus)
        model = nested(weights="softplus", sampling=sampling)
        before = model.module.layers[1].posterior.rho.detach().clone()
        wanted = torch.distributions.kl_divergence(
            torch.distributions.Normal(model.module.layers[1].weight, F.softplus(before)),
            torch.distributions.Normal(0.0, 1.0),
        )
        torch.testing.assert_close(model.module.layers[1].posterior.divergences(None), wanted)
        trained(model, tmp_path, QUICK.but(kappa=1.0))
        assert not torch.isclose(model.module.layers[1].posterior.rho, before).any()
        check_cuts_and_file(model, tmp_path)
        with model.drawing():
            assert not torch.equal(model(X), model(X))
    with pytest.raises(NestlingError, match="softplus"):
        nl.load(tmp_path)


# A gate


class Coin(Gate):
    """z = p (1 + eps / 10) with p = sigmoid(logit) learned, worth keeping where p is above the threshold."""

    default_threshold = 0.5

    def __init__(self, num_units):
        super().__init__(num_units)
        self.logit = nn.Parameter(torch.linspace(-1, 1, num_units))

    def sample(self, features, generator=None):
        return torch.sigmoid(self.logit) * (1 + normal_noise(features, generator) / 10)

    def expectation(self, features):
        return torch.sigmoid(self.logit)

    def kl(self):
        return F.softplus(self.logit).sum()

    def signal_to_noise(self):
        return torch.full((self.num_units,), 10.0)

    def keep(self, threshold=None):
        return torch.sigmoid(self.logit) > (self.default_threshold if threshold is None else threshold)


def test_a_gate(monkeypatch):
    data = (examples(), examples(seed=3))
    with monkeypatch.context() as patch:
        patch.setitem(METHODS, "coin", Method(("units",), Coin, 0.5, (0.0, 1.0)))
        pruned = nl.prune(module(), normal(2, 4), data, "coin", recipe=QUICK, quiet=True)
        assert pruned.after.params < pruned.before.params
        assert difference(pruned.trained, pruned.network, (X,), {}) < 1e-5
    with pytest.raises(ArgumentError, match="coin"):
        nl.prune(module(), normal(2, 4), data, "coin", recipe=QUICK, quiet=True)


# A layer


class Columns(nn.Module):
    """y = x w + b with w (features, outputs), as some transformers have it."""

    def __init__(self, num_features, num_outputs):
        super().__init__()
        self.num_features, self.num_outputs = num_features, num_outputs
        self.weight = nn.Parameter(torch.randn(num_features, num_outputs) / 2)
        self.bias = nn.Parameter(torch.randn(num_outputs) / 2)

    def forward(self, x):
        return x @ self.weight + self.bias


class VariationalColumns(VariationalLayer):
    """The same with a posterior over w."""

    @classmethod
    def from_plain(cls, plain, posterior, sampling):
        return cls(posterior, plain.bias, sampling)

    def apply_weight(self, x, weight, bias, **asked):
        y = x @ weight
        return y if bias is None else y + bias

    def apply_each(self, x, weights, bias, **asked):
        return torch.einsum("b...i,bio->b...o", x, weights) + bias

    def mean_variance(self, squares, variance, **asked):
        return squares @ variance

    def is_batch(self, x):
        return x.ndim > 1

    def can_pull_back(self, x):
        return x.ndim == 2

    def pull_back(self, gradient, x, weight, needed, **asked):
        return gradient @ weight.T if needed[0] else None, x.T @ gradient if needed[1] else None

    def to_plain(self):
        plain = Columns(*self.weight.shape)
        plain.weight, plain.bias = self.posterior.mean, self.bias
        return plain


COLUMNS = LayerType(
    sizes_of_weight("num_features", "num_outputs"),
    variational=VariationalColumns.from_plain,
    reads=(0, -1),
    is_quantised=True,
)


def of_columns():
    torch.manual_seed(0)
    return nn.Sequential(Columns(4, 6), nn.ReLU(), Columns(6, 5), nn.ReLU(), Columns(5, 3))


def test_a_layer_with_a_posterior_and_bits(monkeypatch):
    monkeypatch.setitem(LAYERS, Columns, COLUMNS)
    model = trained(nested(of_columns(), weights="gaussian", kinds=("neuron", "bit")))
    assert [type(part) for part in model.module] == [VariationalColumns, nn.ReLU] * 2 + [VariationalColumns]
    assert any(group.quantises for group in model.groups.free)
    small = nl.extract(model, 0.34)
    assert (small[0].num_outputs, small[2].num_features, small[2].num_outputs) == (2, 2, 2)
    torch.testing.assert_close(small(X), answers(model, 0.34))
    moments = nl.predict(model, X, cut=0.34, by="moments")
    torch.testing.assert_close(moments.probs, nl.predict(model, X, cut=0.34, samples=4000).probs, atol=0.05, rtol=0)


@pytest.mark.parametrize("method", ["vbd", "sparse_vd"])
def test_a_layer_that_is_pruned(monkeypatch, method):
    monkeypatch.setitem(LAYERS, Columns, COLUMNS)
    data = (examples(), examples(seed=3))
    options = {"recipe": QUICK, "quiet": True} | ({"inputs": True, "threshold": -8.93} if method == "vbd" else {})
    pruned = nl.prune(of_columns(), normal(2, 4), data, method, **options)
    assert set(pruned.kept) == ({"0", "2", "0.input"} if method == "vbd" else {"0", "2", "4"})
    if method == "vbd":
        assert not pruned.kept["0"].all()
        assert not pruned.kept["0.input"].all()
        assert difference(pruned.trained, pruned.network, (X,), {}) < 1e-5


def test_a_layer_that_is_not_registered_stays_plain():
    model = nested(of_columns(), weights="gaussian")
    assert [type(part) for part in model.module] == [type(part) for part in of_columns()]


# An optimiser


class Lion(torch.optim.Optimizer):
    """Sign of the momentum, at a rate that a number of each group lowers; it counts the steps of each parameter."""

    def __init__(self, groups):
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "falling": 1.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["falling"] *= 0.9
            for own in group["params"]:
                if own.grad is not None:
                    state = self.state[own]
                    state["count"] = state.get("count", 0) + 1
                    momentum = state.setdefault("momentum", torch.zeros_like(own))
                    momentum.lerp_(own.grad, 0.1 / state["count"] ** 0.5)
                    own.add_(momentum.sign(), alpha=-group["lr"] * group["falling"])


LION = OptimiserType(
    Lion,
    lambda groups, momentum: Lion(groups),
    {"momentum": StateEntry(), "count": StateEntry(torch.int64, plain=True, least=1)},
    group_state=("falling",),
)


@pytest.mark.parametrize("weights", ["gaussian", "ivon"])
@pytest.mark.parametrize("step", [2, 5])
def test_an_optimiser_that_is_stopped_and_goes_on(monkeypatch, tmp_path, weights, step):
    recipe = {"optimiser": "lion", "lr": 0.01, "epochs": 2}
    monkeypatch.setattr("nestling.training.loop.CHECKPOINT_SECONDS", -1.0)
    with monkeypatch.context() as patch:
        patch.setitem(OPTIMISERS, "lion", LION)
        fresh = nested(weights=weights)
        whole = trained(nested(weights=weights), recipe=QUICK.but(**recipe))
        real, calls = Loop._step, []

        def stopped(self, batch):
            calls.append(self.state.step)
            if len(calls) == step:
                raise KeyboardInterrupt
            return real(self, batch)

        with patch.context() as stopping:
            stopping.setattr(Loop, "_step", stopped)
            with pytest.raises(KeyboardInterrupt):
                trained(nested(weights=weights), tmp_path, QUICK.but(**recipe))
        again = trained(nested(weights=weights), tmp_path, QUICK.but(**recipe))
        assert same_tensors(again.state_dict(), whole.state_dict())
        assert not same_tensors(again.state_dict(), fresh.state_dict())
        if weights == "ivon":  # natural steps go along with any optimiser
            before, after = (own.module.layers[1].posterior.log_sigma2 for own in (fresh, again))
            assert not torch.isclose(before, after, rtol=0, atol=0).any()
    with pytest.raises(ArgumentError, match="lion"):
        QUICK.but(**recipe)


# A strategy and a cost


def test_a_strategy_and_a_cost(monkeypatch):
    model, data = trained(nested(weights=None)), [examples(seed=3).tensors]

    def ends(space, score, effort):
        score([space.full, nl.Cut(tuple((group.name, group.num_always) for group in space.groups.free))])

    def num_blocks(own):
        return lambda cut: float(sum(width for _, width in cut.widths))

    with monkeypatch.context() as patch:
        patch.setitem(STRATEGIES, "ends", Strategy(ends, lambda space, effort: 2))
        patch.setitem(COSTS, "blocks", CostType(num_blocks))
        curve = nl.search(model, data, "blocks", strategy="ends")
    assert (curve.num_evaluations, curve.cost, curve.strategy) == (2, "blocks", "ends")
    assert {own.cost for own in curve.tried} == {2.0, 6.0}
    assert curve.under(cost=2) == nl.Cut(tuple((group.name, 1) for group in model.groups.free))
    for options in ({"strategy": "ends"}, {"cost": "blocks"}):
        with pytest.raises(ArgumentError, match="Check its spelling"):
            nl.search(model, data, **options)


# A data set


def test_a_data_set(monkeypatch, tmp_path):
    def stripes(paths):
        numbers = np.random.default_rng(0).integers(0, 2, 80)
        images = np.zeros((80, 1, 2, 2), np.uint8)
        images[np.arange(80), 0, numbers] = 255
        return labelled(images, numbers, 2, "stripes")

    monkeypatch.setitem(
        SOURCES, "stripes", OfficialSet("stripes", {WHOLE: (Layout((), stripes),)}, {WHOLE: 80}, ("-", "="))
    )
    data = nl.data.load("stripes", root=tmp_path)
    assert (data.num_outputs, data.classes, data.input_shape) == (2, ("-", "="), (1, 2, 2))
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    model = nl.nest(network, torch.zeros(2, 1, 2, 2), num_blocks=3, num_always=1)
    run = nl.train(model, "stripes", QUICK.but(epochs=6, lr=0.05), out=tmp_path / "run", quiet=True)
    assert run.data["loaded_with"]["source"] == "stripes"
    assert nl.evaluate(model, data.batches("test", 16), samples=0).accuracy == 1.0


# A format of export, with what opens its files


class ArraySession(Session):
    """Linear layers with ReLU between them, in numpy alone."""

    def __init__(self, path, *, choose=None, threads=None):
        file = np.load(path)
        self.about = json.loads(str(file["about"]))
        self.weights = [file[name] for name in file.files if name != "about"]
        self.inputs, self.outputs = tuple(port["name"] for port in self.about["inputs"]), ("output",)

    def run(self, arrays):
        (x,) = arrays.values()
        for number in range(0, len(self.weights), 2):
            x = np.maximum(x, 0 if number else -np.inf) @ self.weights[number].T + self.weights[number + 1]
        return {"output": x}


class Arrays(FileFormat):
    """The weights of a network of linear layers, as numpy has them."""

    suffix = ".npz"

    def check_installed(self):
        """It needs nothing."""

    def write(self, graph, path):
        weights = {name: tensor.numpy() for name, tensor in graph.module.state_dict().items()}
        np.savez(path, about=json.dumps(graph.about), **weights)
        return (path,)

    def opened(self, path):
        return ArraySession(path)


def test_a_format_of_export(monkeypatch, tmp_path):
    model = nested(weights=None)
    monkeypatch.setitem(FORMATS, "arrays", Arrays)
    monkeypatch.setitem(SESSIONS, ".npz", ArraySession)
    made = nl.export(model, tmp_path / "small.npz", cut=0.34, to="arrays")
    assert made.whole is not None
    answered = nl.runtime.open(tmp_path / "small.npz").predict(X.numpy())
    np.testing.assert_allclose(answered["output"], answers(model, 0.34).numpy(), rtol=1e-5, atol=1e-6)


# The command line offers what the registries hold


def test_the_command_line_offers_what_is_registered():
    assert set(get_args(Nesting.__annotations__["order"])) == set(ORDERS)
    assert set(get_args(PosteriorName)) == set(POSTERIORS)
    assert set(get_args(OptimiserName)) == {"auto", *OPTIMISERS}
    assert set(get_args(StrategyName)) == set(STRATEGIES)
    assert set(get_args(CostName)) == set(COSTS)
    assert set(get_args(MethodName)) == set(METHODS)
    assert set(get_args(FormatName)) == set(FORMATS)
