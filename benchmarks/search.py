"""A beam search with reuse and small sizes, beside the same evaluations done at full width under masks."""

import json
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import nestling as nl
from nestling.network import Cut, Nested
from nestling.prediction.likelihoods import likelihood_named
from nestling.running.modes import in_mode
from nestling.search.costs import Costs
from nestling.search.options import Searching
from nestling.search.quality import Judge, Quality
from nestling.search.strategies import Space, beam

NETWORKS = {"vgg11": 0.5, "mobilenet_v2": 0.5}
IMAGES = (32, 128)
"""In one batch. A search has a few hundred or more; fewer show what the bookkeeping of an operation costs."""
NUM_STEPS, NUM_OTHERS, REPEATS = 6, 3, 2
"""How many steps of the search are timed, evenly spread; cuts of each for the other ways; how often all of them."""

Batch = tuple[Tensor, Tensor]


def main() -> None:
    torch.set_num_threads(1)
    for name, width in NETWORKS.items():
        torch.manual_seed(0)
        module = nl.models.build(name, width=width)
        example = torch.randn(2, 3, 32, 32)
        nested = nl.nest(module, example, num_blocks=3, num_always=1, order="uniform", weights=None).eval()
        steps = steps_of_a_search(nested)
        timed = steps[NUM_STEPS // 2 :: len(steps) // NUM_STEPS]
        for number in IMAGES:
            rows = [times(nested, cuts, number) for cuts in timed]
            ours, own_size, naive = (sum(column) for column in zip(*rows, strict=True))
            question = f"CPU time of a beam search on {name} (width {width}), {number} images in a batch"
            print(
                json.dumps(
                    {
                        "question": question,
                        "evaluations": sum(map(len, steps)),
                        "of them timed": sum(map(len, timed)),
                        "ours / full width under masks": round(ours / naive, 3),
                        "ours / own size without reuse": round(ours / own_size, 3),
                        "milliseconds an evaluation": round(1e3 * ours / sum(map(len, timed)), 1),
                    }
                )
            )


def steps_of_a_search(nested: Nested) -> list[Sequence[Cut]]:
    """The cuts that each step of a search asks for, as found on a few images."""
    judge = Judge(nested, [images(4)], likelihood_named("categorical"))
    steps: list[Sequence[Cut]] = []

    def score(cuts: Sequence[Cut]) -> list[Quality]:
        steps.append(cuts)
        return judge(cuts)

    beam(Space(nested.groups, Costs(nested, "params")), score, Searching(window=0.25))
    return steps


def times(nested: Nested, cuts: Sequence[Cut], number: int) -> tuple[float, float, float]:
    """Seconds for the cuts of a step: ours, each at its own size without reuse, each at full width under masks.

    One way after the other and each more than once, since other work on the machine slows them all.
    """
    batch = images(number)
    ours = Judge(nested, [batch], likelihood_named("categorical"))
    own_size = Judge(nested, [batch], likelihood_named("categorical"), reuse=False)
    some = cuts[:: -(-len(cuts) // NUM_OTHERS)]
    share = len(cuts) / len(some)
    found = [
        (
            seconds(lambda: ours(cuts)),
            seconds(lambda: own_size(some)) * share,
            seconds(lambda: masked(nested, batch, some)) * share,
        )
        for _ in range(REPEATS)
    ]
    first, second, third = (min(own) for own in zip(*found, strict=True))
    return first, second, third


def images(number: int) -> Batch:
    noise = torch.Generator().manual_seed(0)
    return torch.randn(number, 3, 32, 32, generator=noise), torch.randint(0, 10, (number,), generator=noise)


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


@torch.no_grad()
def masked(nested: Nested, batch: Batch, cuts: Sequence[Cut]) -> list[int]:
    """How many labels each cut gets right, computed at full width with what it lacks multiplied by zero."""
    found = []
    with in_mode(nested, training=False):
        for part in nested.module.modules():
            part.training = isinstance(part, nn.BatchNorm2d)  # the statistics of the batch, as the search has it
        for cut in cuts:
            masks = {own.name: (torch.arange(own.num_blocks) < cut[own.name]).float() for own in nested.groups.free}
            found.append(int((nested.run_masked(masks, batch[0]).argmax(1) == batch[1]).sum()))
    return found


if __name__ == "__main__":
    main()
