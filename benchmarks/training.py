"""What a BN3 training step costs beside a plain one: VGG11 with batch norms, 3 x 32 x 32, batches of 64.

Widths are drawn from the orders as they start out; "full" forces the full width. Every step has its optimiser (AdamW)
and its divergence. Other libraries run beside ours if they are installed:
pip install --no-deps bayesian-torch torchbnn
"""

import argparse
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from measuring import in_turns, own_peak, peak_memory, ratio, report
from torch import Tensor, nn
from torch.nn import functional as F

import nestling as nl
from nestling.distributions import log_uniform_kl
from nestling.network.cut import full_cut
from nestling.training.elbo import elbo_terms, weight_divergence

BATCH, NUM_EXAMPLES = 64, 50_000
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain, channels last": {"last": True},
    "local": {"sampling": "local"},
    "one number a channel": {"sampling": "channel"},
    "one weight a batch": {"sampling": "shared"},
    "local, two draws": {"sampling": "local", "draws": 2},
    "one weight a batch, two draws": {"sampling": "shared", "draws": 2},
    "local, full": {"sampling": "local", "full": True},
    "one number a channel, full": {"sampling": "channel", "full": True},
    "one weight a batch, full": {"sampling": "shared", "full": True},
    "torchbnn": {"peer": "torchbnn"},
    "bayesian-torch": {"peer": "bayesian_torch"},
}
AVERAGED = 8
"""Steps to a figure where widths are drawn."""


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
        module = nested = nl.nest(module, torch.zeros(2, 3, 32, 32), num_blocks=32, sampling=sampling)
        widths = torch.Generator().manual_seed(0)
        everything = full_cut(nested.groups)

        def loss() -> Tensor:
            if not full:
                return elbo_terms(nested, (x, y), dataset_size=NUM_EXAMPLES, draws=draws, generator=widths).loss
            with nested.shared_at(everything):
                nll = F.cross_entropy(nested(x), y)
                return nll + weight_divergence(nested, everything, log_uniform_kl) / NUM_EXAMPLES
    else:
        divergence = of_peer(module, peer)

        def loss() -> Tensor:
            value: Tensor = F.cross_entropy(module(x), y) + divergence() / NUM_EXAMPLES
            return value

    optimiser = torch.optim.AdamW(module.train().parameters(), 1e-4, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def of_peer(module: nn.Module, peer: str | None) -> Callable[[], Tensor | float]:
    """Make the layers of a network Bayesian as a library does; what gives its divergence."""
    if peer == "torchbnn":
        import torchbnn  # type: ignore[import-not-found, import-untyped, unused-ignore]

        for parent in list(module.modules()):
            for name, child in parent.named_children():
                if isinstance(child, nn.Conv2d):
                    sizes = (child.in_channels, child.out_channels, child.kernel_size, child.stride, child.padding)
                    setattr(parent, name, torchbnn.BayesConv2d(0, 0.1, *sizes, bias=child.bias is not None))
                elif isinstance(child, nn.Linear):
                    setattr(parent, name, torchbnn.BayesLinear(0, 0.1, child.in_features, child.out_features))
        measure = torchbnn.BKLLoss(reduction="mean", last_layer_only=False)
        return lambda: measure(module)
    if peer == "bayesian_torch":
        from bayesian_torch.models.dnn_to_bnn import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
            dnn_to_bnn,
            get_kl_loss,
        )

        options = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
        dnn_to_bnn(module, options | {"type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5})
        return lambda: get_kl_loss(module)
    return lambda: 0.0


def installed() -> dict[str, dict[str, Any]]:
    """The cases whose library is here."""
    return {name: own for name, own in CASES.items() if "peer" not in own or find_spec(str(own["peer"])) is not None}


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
    cases = installed()
    drawn = {name: AVERAGED for name, own in cases.items() if "sampling" in own and "full" not in own}
    times = in_turns({name: step_of(**own) for name, own in cases.items()}, asked.rounds, drawn)
    memory = {name: peak_memory(__file__, ["--peak-of", name]) for name in cases}
    for name in cases:
        report(
            f"a training step of VGG11, batch {BATCH}, {asked.threads} thread(s): {name}",
            times_plain=ratio(times, name, "plain"),
            times_plain_channels_last=ratio(times, name, "plain, channels last"),
            memory_times_plain=round(memory[name] / memory["plain"], 2),
        )


def several(options: dict[str, Any], number: int = 4) -> None:
    step = step_of(**options)
    for _ in range(number):
        step()


if __name__ == "__main__":
    main()
