"""Other libraries' Bayesian layers in a network, to run beside ours where they are installed: ``make bench`` does."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from torch import Tensor, nn

PEERS = {"torchbnn": "torchbnn", "bayesian-torch": "bayesian-torch", "blitz": "blitz-bayesian-pytorch"}
"""Names, and what they are installed as."""


def installed() -> dict[str, str]:
    """Those that are here, with their versions."""
    found = {}
    for name, package in PEERS.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    return found


def make_bayesian(module: nn.Module, peer: str) -> Callable[[], Tensor]:
    """Make the layers of a network Bayesian, in place, as a library does; what gives its divergence."""
    return {"torchbnn": _torchbnn, "bayesian-torch": _bayesian_torch, "blitz": _blitz}[peer](module)


def _torchbnn(module: nn.Module) -> Callable[[], Tensor]:
    import torchbnn  # type: ignore[import-not-found, import-untyped, unused-ignore]

    def convolution(plain: nn.Conv2d) -> nn.Module:
        sizes = (plain.in_channels, plain.out_channels, plain.kernel_size, plain.stride, plain.padding)
        made: nn.Module = torchbnn.BayesConv2d(0, 0.1, *sizes, bias=plain.bias is not None)
        return made

    _replace(module, convolution, lambda own: torchbnn.BayesLinear(0, 0.1, own.in_features, own.out_features))
    measure = torchbnn.BKLLoss(reduction="mean", last_layer_only=False)
    return lambda: measure(module)


def _bayesian_torch(module: nn.Module) -> Callable[[], Tensor]:
    from bayesian_torch.models.dnn_to_bnn import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        dnn_to_bnn,
        get_kl_loss,
    )

    options = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    dnn_to_bnn(module, options | {"type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5})
    return lambda: get_kl_loss(module)


def _blitz(module: nn.Module) -> Callable[[], Tensor]:
    from blitz.losses import kl_divergence_from_nn  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from blitz.modules import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        BayesianConv2d,
        BayesianLinear,
    )

    def convolution(plain: nn.Conv2d) -> nn.Module:
        options = {"stride": plain.stride, "padding": plain.padding, "bias": plain.bias is not None}
        made: nn.Module = BayesianConv2d(plain.in_channels, plain.out_channels, plain.kernel_size, **options)
        return made

    _replace(module, convolution, lambda own: BayesianLinear(own.in_features, own.out_features))
    return lambda: kl_divergence_from_nn(module)


def _replace(
    module: nn.Module, convolution: Callable[[nn.Conv2d], nn.Module], linear: Callable[[nn.Linear], nn.Module]
) -> None:
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Conv2d):
                setattr(parent, name, convolution(child))
            elif isinstance(child, nn.Linear):
                setattr(parent, name, linear(child))
