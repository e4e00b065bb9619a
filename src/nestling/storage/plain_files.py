"""A plain network as two files: its graph in JSON, and its tensors."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from nestling.errors import NestlingError, RunError
from nestling.running import NUM_PAIRS, Call, PlainGraph
from nestling.storage.files import json_bytes, read_json, read_tensors, tensor_bytes
from nestling.storage.graph_json import Made, graph_from_json, graph_to_json
from nestling.storage.packed import Packing, check_packed, packed_state, unpacked_state

GRAPH_FILE = "network.json"


@dataclass(frozen=True)
class PlainFiles:
    """The content of the file of the graph and of the file of the tensors, and the module that they make."""

    graph: bytes
    tensors: bytes
    module: PlainGraph

    @property
    def num_bytes(self) -> int:
        """The bytes of both files."""
        return len(self.graph) + len(self.tensors)


def plain_files(
    network: nn.Module, call: Call, packing: Packing | None = None, notes: Mapping[str, Any] | None = None
) -> PlainFiles:
    """The files of a plain network, for batches of any size if its code allows it; ``notes`` go with the tensors.

    Raises:
        TraceError: The network has something that a graph in JSON can't hold.
    """
    record, extra, module = graph_to_json(network, call)
    state = {name: tensor for name, tensor in network.state_dict().items() if name not in record["shared"]}
    tensors, about = packed_state(state, packing or Packing())
    return PlainFiles(json_bytes(record), tensor_bytes(tensors | extra, about | dict(notes or {})), module)


def plain_network(graph: Path, tensors: Path, num_pairs: int = NUM_PAIRS, *, made: type[Made]) -> Made:
    """The network of two files that ``plain_files`` made, in eval mode; nothing of the files is run as code."""
    record = read_json(graph)
    saved, about = read_tensors(tensors)
    with _readable(graph, tensors):
        extra = {name: tensor for name, tensor in saved.items() if name.startswith(".")}
        module = graph_from_json(record, unpacked_state(tensors, saved, about) | extra, made)
    if num_pairs < NUM_PAIRS:
        check_packed(about, num_pairs)
        with _readable(graph, tensors):
            fewer = unpacked_state(tensors, saved, about, num_pairs)
            module.load_state_dict(fewer | {name: fewer[first] for name, first in record["shared"].items()})
    return module


@contextmanager
def _readable(graph: Path, tensors: Path) -> Iterator[None]:
    """Turn errors of two files that don't fit each other into one that says so: damaged ones can cause any."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        text = str(error) if isinstance(error, NestlingError) else repr(error)
        raise RunError(graph, f"does not fit {tensors.name} ({text[:300]})", "Extract the network again.") from None
