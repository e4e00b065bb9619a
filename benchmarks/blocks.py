"""What the number of blocks costs: BN3 steps of an MLP 784-512-512-10 with 1 to 512 blocks in each group, batch 128.

At the full width all of them compute the same, so that what differs is the price of the blocks; with drawn widths, from
orders as they start out, more blocks can save more.
"""

import argparse
from collections.abc import Callable

import torch
from measuring import in_turns, own_peak, peak_memory, ratio, report
from torch.nn import functional as F

import nestling as nl
from nestling.distributions import log_uniform_kl
from nestling.reading.cut import full_cut
from nestling.training.elbo import elbo_terms
from nestling.training.terms import weight_divergence

BLOCKS = (1, 2, 8, 32, 128, 512)
BATCH, NUM_EXAMPLES, STEPS = 128, 60_000, 30
BOUND = nl.Recipe(objective="elbo", kappa=1.0, order_weight=None, explore=0.0, coupled=0.0)
"""The evidence lower bound at widths that the orders draw."""
WAYS = ("full", "drawn")


def steps_of(num_blocks: int, way: str) -> Callable[[], None]:
    """A function that makes some training steps, with the gradients of the orders."""
    torch.manual_seed(0)
    made = torch.Generator().manual_seed(0)
    x, y = torch.randn(BATCH, 1, 28, 28, generator=made), torch.randint(0, 10, (BATCH,), generator=made)
    module = nl.models.build("mlp", hidden=[512, 512])
    nested = nl.nest(module, torch.zeros(2, 1, 28, 28), num_blocks=num_blocks, num_always=1).train()
    optimiser = torch.optim.AdamW(nested.parameters(), 1e-4, fused=True)
    widths, everything = torch.Generator().manual_seed(0), full_cut(nested.groups)

    def step() -> None:
        optimiser.zero_grad()
        if way == "drawn":
            loss = elbo_terms(nested, (x, y), dataset_size=NUM_EXAMPLES, recipe=BOUND, generator=widths).loss
        else:
            with nested.shared_at(everything):
                divergence = weight_divergence(nested, everything, log_uniform_kl)
                loss = F.cross_entropy(nested(x), y) + divergence / NUM_EXAMPLES - 1e-6 * nested.log_prob(everything)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    def several() -> None:
        for _ in range(STEPS):
            step()

    return several


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peak-of", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.peak_of is not None:
        steps_of(int(asked.peak_of[0]), asked.peak_of[1])()
        print(own_peak())
        return
    for way in WAYS:
        times = in_turns({str(number): steps_of(number, way) for number in BLOCKS}, asked.rounds)
        memory = {number: peak_memory(__file__, ["--peak-of", str(number), way]) for number in BLOCKS}
        for number in BLOCKS:
            report(
                f"steps of an MLP 784-512-512-10, {number} blocks, {way} width",
                times_one_block=ratio(times, str(number), "1"),
                memory_times_one_block=round(memory[number] / memory[1], 3),
            )


if __name__ == "__main__":
    main()
