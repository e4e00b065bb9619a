"""A whole beam search with reuse and small sizes, beside the same evaluations done at full width under masks."""

import json
import time
from collections.abc import Sequence

import torch
from torch import nn

import nestling as nl
from nestling.network import Cut, Nested
from nestling.prediction.likelihoods import likelihood_named
from nestling.search.costs import Costs
from nestling.search.quality import Judge, Quality
from nestling.search.strategies import Space, beam

IMAGES, BATCH = 32, 32
NETWORKS = {"vgg11": 0.5, "mobilenet_v2": 0.5}


def main() -> None:
    torch.set_num_threads(1)
    for name, width in NETWORKS.items():
        torch.manual_seed(0)
        module = nl.models.build(name, width=width)
        example = torch.randn(2, 3, 32, 32)
        nested = nl.nest(module, example, num_blocks=3, num_always=1, order="uniform", weights=None).eval()
        x, y = torch.randn(IMAGES, 3, 32, 32), torch.randint(0, 10, (IMAGES,))
        batches = list(zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True))
        calls: list[Sequence[Cut]] = []
        judge = Judge(nested, batches, likelihood_named("categorical"))

        def score(cuts: Sequence[Cut], calls: list[Sequence[Cut]] = calls, judge: Judge = judge) -> list[Quality]:
            calls.append(cuts)
            return judge(cuts)

        start = time.process_time()
        beam(Space(nested.groups, Costs(nested, "params")), score, num_kept=3, num_candidates=10, window=0.25, seed=0)
        ours = time.process_time() - start
        cuts = [cut for own in calls for cut in own]
        some = cuts[:: max(1, len(cuts) // 48)]
        own_size = Judge(nested, batches, likelihood_named("categorical"), reuse=False)
        start = time.process_time()
        own_size(some)
        without_reuse = (time.process_time() - start) * len(cuts) / len(some)
        for part in nested.module.modules():
            part.training = isinstance(part, nn.BatchNorm2d)  # the statistics of the batch, as the search has it
        start = time.process_time()
        for cut in some:
            masked(nested, batches, cut)
        naive = (time.process_time() - start) * len(cuts) / len(some)
        print(
            json.dumps(
                {
                    "question": f"CPU time of a beam search on {name} (width {width}), {len(cuts)} evaluations",
                    "ours / full width under masks": round(ours / naive, 3),
                    "ours / own size without reuse": round(ours / without_reuse, 3),
                    "seconds": round(ours, 1),
                }
            )
        )


@torch.no_grad()
def masked(nested: Nested, batches: Sequence[tuple[torch.Tensor, torch.Tensor]], cut: Cut) -> int:
    """How many labels a cut gets right, computed at full width with what it lacks multiplied by zero."""
    masks = {group.name: (torch.arange(group.num_blocks) < cut[group.name]).float() for group in nested.groups.free}
    return sum(int((nested.run_masked(masks, x).argmax(1) == y).sum()) for x, y in batches)


if __name__ == "__main__":
    main()
