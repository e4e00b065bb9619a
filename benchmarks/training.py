"""What a BN3 training step costs beside a plain one: VGG11 with batch norms, 3 x 32 x 32, batches of 64.

Widths are drawn from the orders as they start out; "full" forces the full width. Every step has its optimiser (AdamW)
and its divergence. Other libraries run beside ours if they are installed (peers.py).
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import peers
import torch
from measuring import in_turns, own_peak, peak_memory, ratio, report
from torch import Tensor
from torch.nn import functional as F

import nestling as nl
from nestling.distributions import log_uniform_kl
from nestling.reading.cut import full_cut
from nestling.training.elbo import elbo_terms
from nestling.training.optimisers import AdamW
from nestling.training.terms import weight_divergence

BATCH, NUM_EXAMPLES = 64, 50_000
BOUND = nl.Recipe(objective="elbo", kappa=1.0, order_weight=None, explore=0.0, coupled=0.0)
"""The evidence lower bound at widths that the orders draw."""
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain, channels last": {"last": True},
    "local": {"sampling": "local"},
    "one value per channel": {"sampling": "channel"},
    "one draw per batch": {"sampling": "shared"},
    "local, two draws": {"sampling": "local", "draws": 2},
    "one draw per batch, two draws": {"sampling": "shared", "draws": 2},
    "local, full": {"sampling": "local", "full": True},
    "one value per channel, full": {"sampling": "channel", "full": True},
    "one draw per batch, full": {"sampling": "shared", "full": True},
    **{name: {"peer": name} for name in peers.installed()},
}
AVERAGED = 24
"""Steps to a figure where widths are drawn."""
PEAKS = 3
"""Processes whose peak memory is taken: they differ by some percent."""


def inputs() -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    return torch.randn(BATCH, 3, 32, 32, generator=made), torch.randint(0, 10, (BATCH,), generator=made)


def step_of(
    sampling: Any = None,  # noqa: ANN401
    *,
    full: bool = False,
    draws: int = 1,
    last: bool = False,
    peer: str | None = None,
) -> Callable[[], None]:
    """A function that makes one training step."""
    torch.manual_seed(0)
    module, (x, y) = nl.models.build("vgg11"), inputs()
    if sampling is not None or last:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.to(memory_format=torch.channels_last)
    if sampling is not None:
        module = nested = nl.nest(
            module, torch.zeros(2, 3, 32, 32), weights="gaussian", num_blocks=32, sampling=sampling
        )
        widths = torch.Generator().manual_seed(0)
        everything = full_cut(nested.groups)

        recipe = BOUND.but(draws=draws)

        def loss() -> Tensor:
            if not full:
                return elbo_terms(nested, (x, y), dataset_size=NUM_EXAMPLES, recipe=recipe, generator=widths).loss
            with nested.shared_at(everything):
                nll = F.cross_entropy(nested(x), y)
                return nll + weight_divergence(nested, everything, log_uniform_kl) / NUM_EXAMPLES
    else:
        divergence: Callable[[], Tensor | float] = peers.make_bayesian(module, peer) if peer else float

        def loss() -> Tensor:
            value: Tensor = F.cross_entropy(module(x), y) + divergence() / NUM_EXAMPLES
            return value

    make_optimiser = torch.optim.AdamW if sampling is None else AdamW  # the latter is that of nl.train
    optimiser = make_optimiser(module.train().parameters(), 1e-4, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.peak_of is not None:
        several(CASES[asked.peak_of])
        print(own_peak())
        return
    drawn = {name: AVERAGED for name, own in CASES.items() if "sampling" in own and "full" not in own}
    times = in_turns({name: step_of(**own) for name, own in CASES.items()}, asked.rounds, drawn)
    peaks = {name: [peak_memory(__file__, ["--peak-of", name]) for _ in range(PEAKS)] for name in CASES}
    memory = {name: statistics.median(own) for name, own in peaks.items()}
    for name in CASES:
        report(
            f"a training step of VGG11, batch {BATCH}, {asked.threads} thread(s): {name}",
            times_plain=ratio(times, name, "plain"),
            times_plain_channels_last=ratio(times, name, "plain, channels last"),
            memory_times_plain=round(memory[name] / memory["plain"], 2),
            memory_from_to=[round(limit(peaks[name]) / memory["plain"], 2) for limit in (min, max)],
        )


def several(options: dict[str, Any], number: int = 4) -> None:
    step = step_of(**options)
    for _ in range(number):
        step()


if __name__ == "__main__":
    main()
