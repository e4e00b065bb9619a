"""Numbers as a user has them, of any mean and spread: learned as well as standardised ones, answered in their units."""

import json
import math
import re
from copy import deepcopy

import numpy as np
import pytest
import torch
from small_networks import QUICK, normal, same_tensors
from torch import nn
from torch.utils.data import TensorDataset

import nestling as nl
from nestling import commands
from nestling.network import Nesting
from nestling.prediction import Gaussian, HeteroscedasticGaussian, likelihood_from
from nestling.training.loop import Loop

CENTER, SCALE = 500.0, 137.0
RECIPE = QUICK.but(epochs=12, batch_size=32, lr=0.02, cuts=(0.25, 1.0))
KINDS = {"gaussian": 1, "heteroscedastic_gaussian": 2}


def numbers(number, seed, center=CENTER, scale=SCALE):
    """Targets of about that mean and standard deviation, a fifth of which is noise."""
    x = normal(number, 4, seed=seed)
    wave = torch.sin(2 * x[:, :1]) + x[:, 1:2] * 0.6 + 0.2 * normal(number, 1, seed=seed + 1)
    return TensorDataset(x, center + scale * wave)


def network(outputs=1):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, outputs))
    return nl.nest(module, normal(2, 4), num_blocks=4, num_always=1)


def trained(kind="gaussian", out=None, recipe=RECIPE, nested=None, **of):
    nested = nested or network(KINDS.get(kind, 1))
    return nl.train(
        nested, (numbers(384, 5, **of), numbers(200, 7, **of)), recipe, likelihood=kind, out=out, quiet=True
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("regression") / "run"
    return trained(out=place), place


@pytest.mark.parametrize("kind", KINDS)
def test_targets_far_from_zero_are_learned(kind, folder):
    run = folder[0] if kind == "gaussian" else trained(kind)
    test = numbers(500, 9).tensors
    spread = float(test[1].std())
    for cut, most in ((0.25, 0.8), (1.0, 0.55)):
        scores = nl.evaluate(run.nested, [test], cut=cut)
        assert scores.rmse < most * spread
        assert scores.nll < math.log(spread) + 1.42  # that of the mean alone, with the right noise
        logged = run.log[-1]["validation"][str(cut)]
        assert logged["rmse"] < most * spread
    p = nl.predict(run.nested, test[0], calibration=run.calibration(1.0))
    low, high = p.interval(0.9)
    assert 0.8 < ((low <= test[1]) & (test[1] <= high)).float().mean() < 0.98
    assert p.aleatoric.sqrt().mean() < 0.7 * spread  # the noise was learned


@pytest.mark.parametrize("kind", KINDS)
def test_any_unit_gives_the_same_network(kind):
    few = RECIPE.but(epochs=2)
    ours, unit = (trained(kind, recipe=few, **of) for of in ({}, {"center": 0.0, "scale": 1.0}))
    x, y = numbers(50, 9).tensors
    p, q = (nl.predict(run.nested, x, cut=0.25, samples=2, seed=0) for run in (ours, unit))
    torch.testing.assert_close(p.mean, CENTER + SCALE * q.mean, rtol=2e-3, atol=0.5)
    torch.testing.assert_close(p.std, SCALE * q.std, rtol=2e-2, atol=0.5)
    nll = [nl.evaluate(run.nested, [(x, t)]).nll for run, t in ((ours, y), (unit, (y - CENTER) / SCALE))]
    assert nll[0] == pytest.approx(nll[1] + math.log(SCALE), abs=0.05)


def test_each_number_of_a_target_has_its_own_unit():
    def both(number, seed):
        x, y = numbers(number, seed).tensors
        return TensorDataset(x, torch.cat([y, 1e-3 * (y - CENTER)], 1))

    run = nl.train(network(2), (both(384, 5), both(200, 7)), RECIPE, likelihood="gaussian", quiet=True)
    x, y = both(300, 9).tensors
    p = nl.predict(run.nested, x, calibration=run.calibration(1.0))
    error = (p.mean - y).square().mean(0).sqrt() / y.std(0)
    assert (error < 0.6).all()
    low, high = p.interval(0.9)
    assert (((low <= y) & (y <= high)).float().mean(0) > 0.75).all()


def test_a_run_keeps_the_unit_and_the_noise(folder):
    run, place = folder
    test = [numbers(100, 9).tensors]
    expected = nl.evaluate(run.nested, test, samples=0)
    for nested in (nl.load(place, network()), nl.load(place, network().module), nl.open_run(place, network()).nested):
        assert nl.evaluate(nested, test, samples=0) == expected
        assert nested.likelihood.to_dict() == run.nested.likelihood.to_dict()
        assert torch.equal(nested.likelihood.log_variance, run.nested.likelihood.log_variance)
    again = trained(out=place)
    assert nl.evaluate(again.nested, test, samples=0) == expected
    small = nl.extract(run.nested, 1.0)
    saved = json.loads(json.dumps(run.nested.likelihood.settled().to_dict()))
    by_hand = nl.evaluate(small, test, likelihood=likelihood_from(saved))
    assert (by_hand.rmse, by_hand.nll) == pytest.approx((expected.rmse, expected.nll), rel=1e-5)


def test_a_stopped_run_goes_on_with_its_unit(tmp_path, monkeypatch):
    few = RECIPE.but(epochs=2)
    whole, real, calls = trained(recipe=few), Loop._step, []
    monkeypatch.setattr("nestling.training.loop.CHECKPOINT_SECONDS", -1.0)

    def stopped(self, batch):
        calls.append(batch)
        if len(calls) == 15:
            raise KeyboardInterrupt
        return real(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", stopped)
        with pytest.raises(KeyboardInterrupt):
            trained(out=tmp_path, recipe=few)
    assert same_tensors(trained(out=tmp_path, recipe=few).nested.state_dict(), whole.nested.state_dict())


def test_what_follows_training_knows_the_likelihood(folder):
    run, _ = folder
    data = [numbers(200, 9).tensors]
    assert nl.evaluate(run.nested, data, likelihood="gaussian") == nl.evaluate(run.nested, data)
    assert nl.calibrate(run.nested, data, cut=1.0).likelihood == "gaussian"
    curve = nl.search(run.nested, data, "params", num_points=3, strategy="uniform")
    assert curve.rows[-1].score == pytest.approx(-nl.evaluate(run.nested, data, samples=0, cut=1.0).nll, abs=1e-4)
    loss = nl.elbo(deepcopy(run.nested).train(), data[0], dataset_size=384)
    assert 0 < float(loss.detach()) < 7


def test_fixed_noise_is_in_the_units_of_the_targets():
    run = trained(Gaussian(std=25.0), recipe=RECIPE.but(epochs=1))
    p = nl.predict(run.nested, numbers(20, 9).tensors[0])
    torch.testing.assert_close(p.aleatoric, torch.full_like(p.mean, 25.0**2))


def test_a_loop_of_ones_own():
    nested, (x, y) = network(), numbers(384, 5).tensors
    nested.likelihood = Gaussian().fitted(y)
    optimiser = torch.optim.Adam(nested.parameters(), lr=0.02)
    torch.manual_seed(0)
    for _ in range(150):
        optimiser.zero_grad()
        nl.elbo(nested.train(), (x, y), dataset_size=len(x), kl_warm_up=0.0).backward()
        optimiser.step()
    test = numbers(300, 9).tensors
    assert nl.evaluate(nested, [test]).rmse < 0.6 * test[1].std()
    assert nested.likelihood.settled().std.item() < 0.6 * y.std()


def test_the_scale_is_that_of_the_training_targets_without_what_is_not_finite():
    y = torch.tensor([[1.0, 7.0], [3.0, 7.0], [float("nan"), 7.0]])
    for kind in (Gaussian, HeteroscedasticGaussian):
        found = kind().fitted(y)
        assert (found.center.tolist(), found.scale.tolist()) == ([2.0, 7.0], [1.0, 1.0])
    tenth = Gaussian().fitted(torch.full((1000, 1), 0.1))
    assert tenth.scale.item() == 1.0


def test_two_outputs_with_one_noise_are_told_what_to_choose():
    with pytest.raises(nl.ShapeError, match="heteroscedastic_gaussian"):
        trained("gaussian", nested=network(2))
    with pytest.raises(nl.ShapeError, match=r"Double the last layer's outputs, or choose likelihood='gaussian'"):
        HeteroscedasticGaussian().check(torch.zeros(3, 2), torch.zeros(3, 2))


def test_after_an_error_another_likelihood_can_be_chosen():
    nested, classes = network(3), TensorDataset(normal(24, 4), torch.arange(24) % 3)
    with pytest.raises(nl.DtypeError, match="target"):
        nl.train(nested, (classes, classes), QUICK, likelihood=Gaussian(center=0.0), quiet=True)
    assert nl.train(nested, (classes, classes), QUICK.but(epochs=1), quiet=True).likelihood == "categorical"
    with pytest.raises(nl.ArgumentError, match="scale: got 2 numbers, but it must be as many as center has, 3"):
        Gaussian(center=[1.0, 2.0, 3.0], scale=[1.0, 2.0])


def test_numbers_without_a_likelihood_are_told_what_to_pass():
    with pytest.raises(nl.DtypeError, match="pass likelihood='gaussian' for numbers"):
        nl.train(network(), (numbers(64, 5), numbers(64, 7)), QUICK, quiet=True)
    with pytest.raises(nl.DtypeError, match="pass likelihood='gaussian' for numbers"):
        nl.evaluate(network().module, [numbers(64, 5).tensors])


def test_a_network_of_before_answers_as_before(tmp_path):
    nested = network()
    nl.save(nested, tmp_path)
    again = nl.load(tmp_path, network().module)
    x, y = normal(20, 4, seed=3), normal(20, 1, seed=4)
    scores = nl.evaluate(again, [(x, y)], samples=0, likelihood="gaussian")
    with torch.no_grad():
        expected = torch.distributions.Normal(again(x), 1.0).log_prob(y).mean()
    assert again.likelihood is None
    assert scores.nll == pytest.approx(-float(expected), abs=1e-5)


class Scaled(nl.prediction.Categorical):
    name = "scaled"


def test_a_likelihood_of_ones_own_is_left_to_its_owner(tmp_path):
    nested = network(3)
    nested.likelihood = Scaled()
    nl.save(nested, tmp_path)
    assert nl.load(tmp_path, network(3).module).likelihood is None
    other = network(3)
    other.likelihood = Scaled()
    assert isinstance(nl.load(tmp_path, other).likelihood, Scaled)


def test_half_precision_does_not_round_the_unit(tmp_path):
    nested = network()
    nested.likelihood = Gaussian(center=200_001.0, scale=3.25e5)
    nested.to(torch.float16)
    nl.save(nested, tmp_path)
    again = nl.load(tmp_path, network().module.half())
    assert again.likelihood.to_dict() == nested.likelihood.to_dict()
    assert again.likelihood.center.item() == 200_001.0


@pytest.fixture
def file(tmp_path):
    x, y = numbers(300, 5).tensors
    np.savez(tmp_path / "mine.npz", x=x.numpy(), y=y.numpy())
    return tmp_path / "mine.npz"


@pytest.mark.parametrize("kind", [None, "heteroscedastic_gaussian"])
def test_the_command_line(file, tmp_path, kind):
    few, run = Nesting(num_blocks=4, num_always=1), tmp_path / "run"
    recipe = RECIPE.but(epochs=6, cuts=(0.5, 1.0))
    commands.train(str(file), "mlp", run, few, recipe, model_options=["hidden=[32,16]"], likelihood=kind)
    assert nl.open_run(run).likelihood == (kind or "gaussian")
    table = commands.evaluate(run, (1.0,), samples=2).splitlines()
    header, _, row = (re.split(r"\s{2,}", line.strip()) for line in table[:3])
    assert float(row[header.index("RMSE")].split()[0]) < 0.75 * float(numbers(300, 5).tensors[1].std())
    rows = commands.predict(run, file, 1.0, 2, 0.9).splitlines()[2:]
    means = [float(re.split(r"\s{2,}", row.strip())[1]) for row in rows]
    assert abs(np.mean(means) - CENTER) < 40
    said = commands.extract(run, cut=0.5)
    assert "validation data" not in said
    saved = json.loads(next(run.glob("small-*/small.json")).read_text())["likelihood"]
    assert saved["center"][0] == pytest.approx(CENTER, abs=30)
    assert likelihood_from(saved).name == (kind or "gaussian")


def test_a_likelihood_that_does_not_go_with_the_data(file, tmp_path):
    with pytest.raises(nl.ArgumentError, match=r"categorical.*which is for classes.*one for numbers"):
        commands.train(str(file), "mlp", tmp_path / "run", Nesting(), QUICK, likelihood="categorical")
    with pytest.raises(nl.ArgumentError, match="bernoulli for 10 classes"):
        commands.train("digits", "mlp", tmp_path / "run", Nesting(), QUICK, likelihood="bernoulli")


def test_a_pruned_network_answers_in_the_users_units():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    data = (numbers(384, 5), numbers(100, 7))
    pruned = nl.prune(
        module, normal(2, 4), data, recipe=RECIPE.but(kappa=0.01), likelihood="gaussian", tune=True, quiet=True
    )
    test = numbers(300, 9).tensors
    assert nl.evaluate(pruned.network, [test], likelihood=pruned.likelihood).rmse < 0.8 * test[1].std()
