"""The code of a checkpoint that is narrower than its config can say: a copy of this file names the class it narrows.

It needs transformers alone. The sizes stand in the entries ``narrow_shapes`` and ``narrow_sizes`` of the config, so
nothing of a network is written into the code except the line that imports its class.
"""

from typing import Any

from torch import nn
from transformers import PreTrainedModel as Whole


class NarrowModel(Whole):  # type: ignore[no-untyped-call]
    """The network of transformers, with tensors of the shapes and attributes of the sizes that its config names."""

    def __init__(self, config: Any) -> None:  # noqa: ANN401
        super().__init__(config)
        for name, shape in config.narrow_shapes.items():
            layer, last = self._place(name)
            setattr(layer, last, nn.Parameter(getattr(layer, last).new_empty(shape)))
        for name, size in config.narrow_sizes.items():
            layer, last = self._place(name)
            setattr(layer, last, size)

    def _place(self, name: str) -> tuple[nn.Module, str]:
        path, _, last = name.rpartition(".")
        return self.get_submodule(path), last
