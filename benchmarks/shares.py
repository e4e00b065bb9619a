"""What parts of a training step cost: the divergence of the weights, and drawing and slicing the width.

VGG11 with batch norms, 3 x 32 x 32, batches of 64. The share of the divergence is the time it takes by itself, with its
gradient, of a BN3 step, for widths drawn from the orders as they start out and for the full width. Slices are timed on
a network of plain weights: passes forth and back at drawn cuts, against networks extracted at the same cuts.
"""

import argparse
from collections.abc import Callable

import torch
from measuring import in_turns, ratio, report
from torch import nn
from torch.nn import functional as F

import nestling as nl
from nestling.distributions import log_uniform_kl
from nestling.reading.cut import full_cut
from nestling.training.terms import weight_divergence
from training import AVERAGED, NUM_EXAMPLES, inputs, step_of


def divergence_alone(*, full: bool = False) -> Callable[[], None]:
    """A function that finds the divergence of one drawn width, and adds its gradient to another of the same size.

    What brings gradients from the size of the cut to that of the network is left out: a step has it anyway.
    """
    torch.manual_seed(0)
    module = nl.models.build("vgg11").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    nested = nl.nest(module, torch.zeros(2, 3, 32, 32), weights="gaussian", num_blocks=32).train()
    widths = torch.Generator().manual_seed(0)

    def run() -> None:
        cut = full_cut(nested.groups) if full else nested.sample_cut(widths)
        with nested.shared_at(cut):
            tensors = nested.tensors() | nested.sliced_at(cut)
            scales = [own for name, own in tensors.items() if name.endswith("log_alpha")]
            value = weight_divergence(nested, cut, log_uniform_kl) / NUM_EXAMPLES
            for gradient in torch.autograd.grad(value, scales):
                torch.add(gradient, gradient)

    return run


def divergences(rounds: int) -> None:
    for full in (False, True):
        steps = {sampling: step_of(sampling=sampling, full=full) for sampling in ("local", "channel", "shared")}
        alone = {"alone": divergence_alone(full=full)}
        times = in_turns(alone | steps, rounds, 1 if full else AVERAGED)
        for sampling in steps:
            name = f"{sampling}, full" if full else sampling
            report(f"the divergence by itself, of a step of VGG11, {name}", share=ratio(times, "alone", sampling))


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
