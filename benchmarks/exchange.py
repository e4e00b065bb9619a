"""What the exchange of gradients costs in a training step of VGG11, in 1, 2 and 4 processes on one machine.

A step is that of ``nl.train``: three widths, natural-gradient noise, AdamW, 64 images of 3 x 32 x 32 in each process.
It is timed without an exchange, with that of DistributedDataParallel, and with one exchange of all gradients after the
backward pass, in turns and at the same widths. Gloo talks over loopback. Processes begin each step together, but a
machine with fewer free cores than processes has them wait for each other: that shows on the clock, not in CPU time.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from measuring import report
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

import nestling as nl
from nestling.processes import Processes, current
from nestling.training.elbo import elbo_terms
from nestling.training.parameter_groups import make_optimiser
from nestling.training.terms import Terms

BATCH, NUM_EXAMPLES = 64, 50_000
RECIPE = nl.Recipe(cuts=(0.25, 0.5, 0.75, 1.0))
WIDTHS, COUNTS = (1.0, 0.25), (1, 2, 4)
WAYS = ("none", "overlapping", "after")
"""No exchange, DistributedDataParallel's, and one after the backward pass."""


def stepper(processes: Processes, nested: nl.Nested, call: nn.Module) -> Callable[[str, int], list[float]]:
    """A function that makes one step with a way of exchange, and gives its seconds on the clock and of CPU.

    The last two are those of the exchange by itself, where it has a time of its own.
    """
    made = torch.Generator().manual_seed(processes.rank)
    batch = torch.randn(BATCH, 3, 32, 32, generator=made), torch.randint(0, 10, (BATCH,), generator=made)
    optimiser = make_optimiser(nested, RECIPE, num_steps=10_000)

    def objective(number: int) -> Terms:
        widths = torch.Generator().manual_seed(number)
        return elbo_terms(nested, batch, dataset_size=NUM_EXAMPLES, recipe=RECIPE, generator=widths)

    def step(way: str, number: int) -> list[float]:
        local = nullcontext() if way == "overlapping" or processes.count == 1 else call.no_sync()  # type: ignore[operator]
        processes.gather(b"")
        begun = now()
        optimiser.zero_grad()
        with local:
            call(objective, number).loss.backward()
        gone = now()
        if way == "after":
            average(processes, nested)
        spent = [end - start for end, start in zip(now(), gone, strict=True)]
        optimiser.step()
        return [end - start for end, start in zip(now(), begun, strict=True)] + spent

    return step


def average(processes: Processes, nested: nl.Nested) -> None:
    """Average all gradients in one exchange."""
    used = [own for own in nested.parameters() if own.grad is not None]
    flat = processes.mean(torch.cat([gradient_of(own).reshape(-1) for own in used]))
    for own, mean in zip(used, torch.split(flat, [own.numel() for own in used]), strict=True):
        gradient_of(own).copy_(mean.view_as(own))


def gradient_of(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def measure(rank: int, count: int, meeting: str, nested: nl.Nested, width: float, rounds: int) -> None:
    """Time the steps in one of the processes, and have the first of them report."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=count)
    processes, ways = current(), WAYS if count > 1 else WAYS[:1]
    with processes.averaging(nested) as call:
        step = stepper(processes, nested, call)
        rows = [[step(way, number) for way in ways] for number in range(rounds + 1)][1:]  # the first finds memory
    times = processes.mean(torch.tensor(rows, dtype=torch.float64))  # (rounds, ways, 4)
    if processes.is_first:
        tell(width, count, nested, times)
    dist.barrier()
    dist.destroy_process_group()


def tell(width: float, count: int, nested: nl.Nested, times: Tensor) -> None:
    """Report the medians and quartiles over the rounds, each figure a mean over the processes."""
    figures: dict[str, object] = {}
    for place, clock in enumerate(("wall", "cpu")):
        figures[f"{clock}_seconds_without"] = round(float(times[:, 0, place].median()), 3)
        if count > 1:
            none, overlapping, after = times[:, :, place].T
            figures[f"{clock}_percent_overlapping"] = spread(100 * (overlapping - none) / overlapping)
            figures[f"{clock}_percent_after"] = spread(100 * times[:, 2, place + 2] / after)
    megabytes = sum(own.numel() * own.element_size() for own in nested.parameters()) / 1e6
    report(
        f"share of a training step that the exchange takes: VGG11, width {width:g}, {count} process(es)",
        megabytes=round(megabytes, 1),
        **figures,
    )


def spread(values: Tensor) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values.tolist(), n=4, method="inclusive")
    return {"median": round(middle, 1), "from": round(low, 1), "to": round(high, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--widths", type=float, nargs="+", default=WIDTHS)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    asked = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    for width in asked.widths:
        torch.manual_seed(0)
        nested = nl.nest(nl.models.build("vgg11", width=width), torch.zeros(2, 3, 32, 32), num_blocks=16).train()
        for count in asked.counts:
            with tempfile.TemporaryDirectory() as folder:
                given = count, str(Path(folder, "meeting")), nested, width, asked.rounds
                start_processes(measure, given, nprocs=count, start_method="fork")  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
