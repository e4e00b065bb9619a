"""What the predictive distribution costs beside one plain forward pass: VGG11 with batch norms, six samples.

Other libraries, six passes each, run beside ours if they are installed (peers.py).
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import peers
import torch
from measuring import in_turns, ratio, report

import nestling as nl

BATCHES = (1, 16, 128)
SAMPLES = 6


def ways(nested: nl.Nested, shared: nl.Nested, x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    predict = partial(nl.predict, x=x, samples=SAMPLES)
    return {
        "local, draws": partial(predict, nested),
        "local, fast draws": partial(predict, nested, by="fast_draws"),
        "one weight per pass, draws": partial(predict, shared),
        "moments": partial(predict, nested, by="moments"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    plain, last = nl.models.build("vgg11").eval(), nl.models.build("vgg11").eval()
    last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    example = torch.zeros(2, 3, 32, 32)
    nested, shared = (
        nl.nest(last, example, weights="gaussian", num_blocks=32, sampling=how).eval() for how in ("local", "shared")
    )
    others = {name: nl.models.build("vgg11") for name in peers.installed()}
    for name, other in others.items():
        peers.make_bayesian(other, name)
        other.eval()
    for batch in BATCHES:
        x = torch.randn(batch, 3, 32, 32)
        x_last = x.to(memory_format=torch.channels_last)
        functions = {
            "plain": no_gradients(plain, x),
            "plain, channels last": no_gradients(last, x_last),
            f"plain, {SAMPLES} times as many images": no_gradients(plain, x.repeat(SAMPLES, 1, 1, 1)),
            **ways(nested, shared, x_last),
            **{name: no_gradients(other, x, SAMPLES) for name, other in others.items()},
        }
        times = in_turns(functions, asked.rounds, 10 if batch == 1 else 1)
        for name in functions:
            report(
                f"{SAMPLES} samples of {batch} image(s), {asked.threads} thread(s): {name}",
                times_one_plain_pass=ratio(times, name, "plain"),
                times_one_plain_pass_channels_last=ratio(times, name, "plain, channels last"),
            )


def no_gradients(module: torch.nn.Module, x: torch.Tensor, times: int = 1) -> Callable[[], Any]:
    def run() -> Any:  # noqa: ANN401
        with torch.no_grad():
            return [module(x) for _ in range(times)]

    return run


if __name__ == "__main__":
    main()
