"""Pruned networks as programs: exported, read in a fresh process that knows torch alone, with the same answers."""

import subprocess
import sys

import torch
from pruning_networks import examples, small_mlp

from nestling.pruning import prune
from nestling.pruning.methods import METHODS
from nestling.training import Recipe

QUICK = Recipe(epochs=2, batch_size=40, lr=1e-2, order_lr=5e-2, lr_warm_up=0.0, kl_warm_up=0.0, samples=2)
READER = """
import sys, torch
for method in sys.argv[2:]:
    x, expected = torch.load(f"{sys.argv[1]}/{method}.pt")
    found = torch.export.load(f"{sys.argv[1]}/{method}.pt2").module()(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
assert "nestling" not in sys.modules
print("same")
"""


def test_programs_that_need_nothing_of_nestling(tmp_path):
    methods = ["vbd", "dependent_beta_bernoulli"]
    data, x = examples(), torch.randn(5, 6)
    for method in methods:
        units = METHODS[method].structures[0] == "units"
        pruned = prune(small_mlp(), torch.zeros(2, 6), (data, data), method, recipe=QUICK, inputs=units, quiet=True)
        with torch.no_grad():
            program = torch.export.export(pruned.network, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
            torch.save((x[:3], pruned.network(x[:3])), tmp_path / f"{method}.pt")
        torch.export.save(program, tmp_path / f"{method}.pt2")
    command = [sys.executable, "-c", READER, str(tmp_path), *methods]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.stdout == "same\n", said.stderr
