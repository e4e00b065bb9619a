"""The norms of a network: batch norms, and those whose statistics run over units that are cut."""

import warnings

from torch import nn

from nestling.reading import Groups
from nestling.torch_parts import BatchNorm


def batch_norms(module: nn.Module) -> dict[str, BatchNorm]:
    """Every batch norm of a module, by path."""
    return {path: norm for path, norm in module.named_modules() if isinstance(norm, BatchNorm)}


def scales_of_norms(module: nn.Module, groups: Groups) -> dict[str, nn.Parameter]:
    """The weights and biases, by name, of batch norms and of norms over the units of a group that is cut.

    The latter, such as LayerNorm and any RMSNorm, are the modules that hold nothing but one number per such unit.
    """
    inexact = {piece.tensor for group in groups.free if not group.exact for piece in group.slices}
    scales: dict[str, nn.Parameter] = {}
    for path, submodule in module.named_modules():
        own = {f"{path}.{key}" if path else key: own for key, own in submodule.named_parameters(recurse=False)}
        over_units = all(parameter.ndim == 1 and name in inexact for name, parameter in own.items())
        scales |= own if isinstance(submodule, BatchNorm) or over_units else {}
    return scales


def were_trained(module: nn.Module) -> bool:
    """Whether some batch norm has been trained on a batch."""
    counts = (count for name, count in module.named_buffers() if name.endswith("num_batches_tracked"))
    return any(bool(count > 0) for count in counts)


def warn_of_statistics(num_blocks: int, of: int) -> None:
    """Warn whoever enters ``at`` that a smaller cut runs with the statistics of the whole network's norms."""
    warnings.warn(
        f"the cut that keeps {num_blocks} of {of} blocks has no batch-norm statistics of its own, and those of the "
        "whole network can make it useless. Call nl.recalibrate(nested, loader, cut) with a few batches of training "
        "data first. (This is said once per network.)",
        stacklevel=5,
    )


def norms_with_statistics(module: nn.Module) -> dict[str, BatchNorm]:
    """Every batch norm that keeps running statistics, which belong to a cut."""
    return {path: norm for path, norm in batch_norms(module).items() if norm.running_mean is not None}
