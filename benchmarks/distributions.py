"""What the exact log-uniform KL costs beside Molchanov's fit, and how a Downhill sample grows with the blocks."""

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from nestling.distributions import Downhill, log_uniform_kl, molchanov_kl

NUM_ELEMENTS = 10_000_000
ROUNDS = 7
BLOCKS = (128, 512, 2048, 8192)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    log_alpha = 4 * torch.randn(NUM_ELEMENTS)
    ratios = [seconds(log_uniform_kl, log_alpha) / seconds(molchanov_kl, log_alpha) for _ in range(ROUNDS + 1)][1:]
    samples = {blocks: sample_seconds(blocks) for blocks in BLOCKS}
    growth = {f"{small}->{large}": samples[large] / samples[small] for small, large in zip(BLOCKS, BLOCKS[1:])}  # noqa: B905, RUF007
    print(
        json.dumps(
            {
                "question": "exact KL over Molchanov's, forward and backward; Downhill sample against K",
                "elements": NUM_ELEMENTS,
                "threads": torch.get_num_threads(),
                "exact_over_molchanov": round(statistics.median(ratios), 3),
                "spread": [round(min(ratios), 3), round(max(ratios), 3)],
                "sample_time_ratio_for_4_times_the_blocks": {k: round(v, 2) for k, v in growth.items()},
            }
        )
    )


def seconds(divergence: Callable[[Tensor], Tensor], log_alpha: Tensor) -> float:
    """CPU time of the divergence, summed, and of its gradient."""
    leaf = log_alpha.clone().requires_grad_()
    start = time.process_time()
    torch.autograd.grad(divergence(leaf).sum(), [leaf])
    return time.process_time() - start


def sample_seconds(num_blocks: int) -> float:
    """CPU time of 64 relaxed masks over that many blocks, the least of several."""
    order = Downhill(torch.full((num_blocks - 1,), 3.0))
    times = []
    for _ in range(20):
        start = time.process_time()
        order.rsample((64,))
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    main()
