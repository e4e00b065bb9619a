"""What a cut costs while the network runs, beside the same network built by hand, and beside a masked one."""

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import nestling as nl

NETWORKS = ("vgg11", "mobilenet_v2", "resnet14")
BATCHES = {1: 60, 64: 24}
NOT_SCALED_BY_HAND = ("head.0",)


def main(names: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    for name in names:
        for batch, rounds in BATCHES.items():
            print(
                json.dumps(
                    {"question": "a cut to half width", "network": name, "batch": batch} | measure(name, batch, rounds)
                )
            )
    print(json.dumps({"question": "seconds that nest takes"} | nesting()))


@torch.no_grad()
def measure(name: str, batch: int, rounds: int) -> dict[str, object]:
    torch.manual_seed(0)
    x = torch.randn(batch, *nl.models.example_shape(name))
    full = nl.models.build(name).eval()
    nested = nl.nest(
        full, x[:2] if batch > 1 else torch.cat([x, x]), weights=None, num_blocks=4, num_always=1, where="all"
    ).eval()
    cut = {group.name: 2 for group in nested.groups.free if group.name not in NOT_SCALED_BY_HAND}
    hand = nl.models.build(name, width=0.5).eval()
    extracted = nl.extract(nested, cut)
    hand.load_state_dict(extracted.state_dict())
    masked = with_masks(nl.models.build(name).eval())
    with nested.at(cut):
        torch.testing.assert_close(nested(x), hand(x), rtol=1e-3, atol=1e-4)
        runs: dict[str, Callable[[], object]] = {
            "by hand": lambda: hand(x),
            "nested": lambda: nested(x),
            "extracted": lambda: extracted(x),
            "masked": lambda: masked(x),
            "full": lambda: full(x),
        }
        times = alternate(runs | {"nested, a new block each call": lambda: in_new_block(nested, cut, x)}, rounds)
        switch = seconds(lambda: switched(nested, cut), 200)
    hand_time = statistics.median(times["by hand"])
    ratios: dict[str, object] = {
        f"{key} / by hand": round(median_ratio(times[key], times["by hand"]), 3) for key in times if key != "by hand"
    }
    return ratios | {"by hand, ms": round(1e3 * hand_time, 2), "switch / forward": round(switch / hand_time, 5)}


def in_new_block(nested: nl.Nested, cut: dict[str, int], x: Tensor) -> None:
    with nested.at(cut):
        nested(x)


def switched(nested: nl.Nested, cut: dict[str, int]) -> None:
    with nested.at(cut):
        pass


def with_masks(module: nn.Module) -> nn.Module:
    """The network with half of the outputs of every norm multiplied by zero."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.register_forward_hook(half_masked)
    return module


def half_masked(module: nn.Module, args: object, output: Tensor) -> Tensor:
    mask = torch.zeros(output.shape[1], 1, 1)
    mask[: output.shape[1] // 2] = 1
    return output * mask


def alternate(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {key: [] for key in runs}
    for turn in range(rounds + 2):
        for key, run in runs.items():
            taken = seconds(run, 1)
            if turn >= 2:
                times[key].append(taken)
    return times


def seconds(run: Callable[[], object], repeats: int) -> float:
    """CPU time of one call."""
    start = time.process_time()
    for _ in range(repeats):
        run()
    return (time.process_time() - start) / repeats


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def nesting() -> dict[str, float]:
    """Nesting MobileNetV2, and plain chains of residual blocks, one four times as deep as the other."""
    warm_up = nl.models.build("resnet14")
    nl.nest(warm_up, torch.randn(2, 3, 32, 32))
    mobile = nest_seconds(nl.models.build("mobilenet_v2"))
    shallow, deep = (nest_seconds(nl.models.resnet.ResNet(depth)) for depth in (14, 56))
    return {"mobilenet_v2": round(mobile, 2), "resnet14": round(shallow, 2), "resnet56": round(deep, 2)}


def nest_seconds(module: nn.Module) -> float:
    x = torch.randn(2, 3, 32, 32)
    return seconds(lambda: nl.nest(module, x, where="all"), 1)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or NETWORKS)
