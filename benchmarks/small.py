"""A small network as a folder of data, beside torch's program of it: time to load, time of a call, and bytes."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from measuring import in_turns, ratio, report
from torch import nn

import nestling as nl
from nestling.delivery import save_small

ROUNDS, CALLS = 11, 20
NETWORKS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "mlp": ({"hidden": [64, 32], "in_features": 64, "num_classes": 10}, (1, 8, 8)),
    "lenet_300_100": ({}, (1, 28, 28)),
    "resnet14": ({}, (3, 32, 32)),
    "vgg11": ({"width": 0.5}, (3, 32, 32)),
}


def main() -> None:
    """Measure each network, and one of which a twentieth of the weights is left."""
    torch.set_num_threads(1)
    for name, (options, shape) in NETWORKS.items():
        measured(name, nl.models.build(name, **options).eval(), shape)
    sparse = nl.models.build("lenet_300_100").eval()
    with torch.no_grad():
        for weight in filter(lambda own: own.ndim > 1, sparse.parameters()):
            weight.mul_(torch.rand(weight.shape, generator=torch.Generator().manual_seed(0)) < 0.05)
    measured("lenet_300_100, 5 % of the weights", sparse, (1, 28, 28))


def measured(name: str, network: nn.Module, shape: tuple[int, ...]) -> None:
    """Print what one network costs in both forms."""
    with tempfile.TemporaryDirectory() as folder:
        place, x = Path(folder), torch.randn(1, *shape)
        small = save_small(network, ((torch.zeros(2, *shape),), {}), place, {}, program=True)
        program = torch.export.load(place / "network.pt2").module()
        loads = {"data": lambda: nl.load_small(place), "program": lambda: torch.export.load(place / "network.pt2")}
        calls = {"module": lambda: network(x), "data": lambda: small(x), "program": lambda: program(x)}
        with torch.no_grad():
            loading, calling = in_turns(loads, ROUNDS), in_turns(calls, ROUNDS, CALLS)
        names = ("network.json", "weights.safetensors")
        report(
            f"{name}, batch 1",
            load_over_program=ratio(loading, "data", "program"),
            call_over_module=ratio(calling, "data", "module"),
            program_call_over_module=ratio(calling, "program", "module"),
            bytes=sum((place / own).stat().st_size for own in names),
            program_bytes=(place / "network.pt2").stat().st_size,
        )


if __name__ == "__main__":
    main()
