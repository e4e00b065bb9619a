"""The parameters and buffers of a module by name, with every place where the module keeps them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from nestling.torch_parts import tensor_stores, weight_list


class Holders:
    """Where a module keeps its tensors; a tensor shared by several places has the first of its names.

    ``canonical`` maps every name to that first name; ``members`` has each submodule with the names of its tensors.
    """

    def __init__(self, module: nn.Module) -> None:
        self._places: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
        self.canonical: dict[str, str] = {}
        self.members: list[tuple[nn.Module, dict[str, str]]] = []
        first_names: dict[int, str] = {}
        visited: set[int] = set()
        for path, submodule in module.named_modules(remove_duplicate=False):
            names: dict[str, str] = {}
            for store in tensor_stores(submodule):
                for key, tensor in store.items():
                    if tensor is not None:
                        name = f"{path}.{key}" if path else key
                        names[key] = self.canonical[name] = first_names.setdefault(id(tensor), name)
                        if id(submodule) not in visited:
                            self._places[names[key]].append((store, key))
            if id(submodule) not in visited:
                listed, keys = weight_list(submodule)
                for position, key in enumerate(keys):
                    self._places[names[key]].append((listed, position))
            if names and id(submodule) not in visited:
                self.members.append((submodule, names))
            visited.add(id(submodule))

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor once, under the first of its names."""
        return {name: places[0][0][places[0][1]] for name, places in self._places.items()}

    @contextmanager
    def replaced(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Let the module use other tensors inside the ``with``, and its former tensors again afterwards."""
        places = [(store, key, name) for name in tensors for store, key in self._places[name]]
        saved = [store[key] for store, key, _ in places]
        try:
            for store, key, name in places:
                store[key] = tensors[name]
            yield
        finally:
            for (store, key, _), tensor in zip(places, saved, strict=True):
                store[key] = tensor

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Give the module smaller tensors for good, as contiguous copies; parameters stay parameters."""
        for name, tensor in tensors.items():
            (store, key), *_ = self._places[name]
            old = store[key]
            assert old is not None
            fresh = tensor.detach().contiguous().clone()
            new = nn.Parameter(fresh, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else fresh
            for store, key in self._places[name]:
                store[key] = new

    def tie(self) -> None:
        """Make each shared tensor shared again, after its places were given different tensors."""
        for (store, key), *others in self._places.values():
            for other, name in others:
                other[name] = store[key]
