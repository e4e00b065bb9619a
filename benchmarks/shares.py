"""What parts of a training step cost: the divergence of the weights, and drawing and slicing the width.

VGG11 with batch norms, 3 x 32 x 32, batches of 64. The share of the divergence is what a BN3 step takes less without
it, for widths drawn from the orders as they start out and for the full width. Slices are timed on a network of plain
weights: passes forth and back at drawn cuts, against networks extracted at the same cuts.
"""

import argparse
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from measuring import in_turns, ratio, report
from torch import Tensor, nn
from torch.nn import functional as F

import nestling as nl
from training import AVERAGED, inputs, step_of


def nothing(*_: object) -> Tensor:
    return torch.zeros(())


def without_divergence(step: Callable[[], None]) -> Callable[[], None]:
    def shorter() -> None:
        with patch("nestling.training.elbo.weight_divergence", nothing), patch("training.weight_divergence", nothing):
            step()

    return shorter


def divergences(rounds: int) -> None:
    ways: dict[str, dict[str, Any]] = {
        "local": {"sampling": "local"},
        "channel": {"sampling": "channel"},
        "shared": {"sampling": "shared"},
        "local, full": {"sampling": "local", "full": True},
        "shared, full": {"sampling": "shared", "full": True},
    }
    for name, options in ways.items():
        steps = {"with": step_of(**options), "without": without_divergence(step_of(**options))}
        times = in_turns(steps, rounds, 1 if "full" in options else AVERAGED)
        found = ratio(times, "without", "with")
        share = {
            part: round(1 - found[other], 3) for part, other in (("median", "median"), ("from", "to"), ("to", "from"))
        }
        report(f"share of the divergence in a step of VGG11, {name}", share=share)


def slices(rounds: int) -> None:
    torch.manual_seed(0)
    module, (x, y) = nl.models.build("vgg11").to(memory_format=torch.channels_last), inputs()  # type: ignore[call-overload]
    x = x.to(memory_format=torch.channels_last)
    nested = nl.nest(module, torch.zeros(2, 3, 32, 32), num_blocks=32, weights=None).train()
    chance = torch.Generator().manual_seed(0)
    cuts = [nested.sample_cut(chance) for _ in range(AVERAGED)]
    small = [nl.extract(nested, cut).train() for cut in cuts]
    drawn = torch.Generator().manual_seed(0)

    def whole() -> None:
        for _ in range(AVERAGED):
            cut = nested.sample_cut(drawn)
            for own in nested.parameters():
                own.grad = None
            with nested.shared_at(cut):
                loss = F.cross_entropy(nested(x), y) - 1e-6 * nested.log_prob(cut)
            loss.backward()  # type: ignore[no-untyped-call]
        drawn.manual_seed(0)

    def apart() -> None:
        for own in small:
            pass_forth_and_back(own)

    def pass_forth_and_back(network: nn.Module) -> None:
        network.zero_grad()
        F.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]

    times = in_turns({"nested": whole, "extracted": apart}, rounds)
    report("passes of a nested VGG11 at drawn cuts, against extracted ones", times=ratio(times, "nested", "extracted"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    slices(asked.rounds)
    divergences(asked.rounds)


if __name__ == "__main__":
    main()
