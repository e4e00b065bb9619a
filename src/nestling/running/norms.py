"""The batch norms of a network."""

import warnings

from torch import nn

from nestling.torch_parts import BatchNorm


def batch_norms(module: nn.Module) -> dict[str, BatchNorm]:
    """Every batch norm of a module, by path."""
    return {path: norm for path, norm in module.named_modules() if isinstance(norm, BatchNorm)}


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
