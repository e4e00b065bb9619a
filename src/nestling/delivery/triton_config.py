"""config.pbtxt: what Triton is told of a model, as the text form of its ModelConfig."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_IN_A_BATCH = 64
"""How many examples Triton puts into one call at most: the largest batch that exported files are checked with."""
_TYPES = {
    "uint8": "TYPE_UINT8",
    "int8": "TYPE_INT8",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bool": "TYPE_BOOL",
}


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model: its name, numpy's name of its dtype, and its sizes without the batch."""

    name: str
    dtype: str
    dims: tuple[int, ...]


def config_text(
    name: str,
    backend: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    labels: str | None = None,
    parameters: Mapping[str, str] | None = None,
    on_cpu: bool = False,
) -> str:
    """The text of a model's config.pbtxt; ``labels`` is the file that names the classes of the output ``probs``."""
    lines = [f"name: {_quoted(name)}", f"backend: {_quoted(backend)}", f"max_batch_size: {MOST_IN_A_BATCH}"]
    lines += [f"input {{ {_described(tensor)} }}" for tensor in inputs]
    for tensor in outputs:
        named = f" label_filename: {_quoted(labels)}" if labels is not None and tensor.name == "probs" else ""
        lines.append(f"output {{ {_described(tensor)}{named} }}")
    lines += [
        f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(value)} }} }}"
        for key, value in (parameters or {}).items()
    ]
    lines += ["instance_group { kind: KIND_CPU }"] if on_cpu else []
    return "\n".join([*lines, "dynamic_batching { }", ""])


def _described(tensor: Tensor) -> str:
    dims = ", ".join(map(str, tensor.dims))
    return f"name: {_quoted(tensor.name)} data_type: {_TYPES[tensor.dtype]} dims: [ {dims} ]"


def _quoted(text: str) -> str:
    """A string of the text form: JSON escapes quotes, backslashes and all that is not ASCII, as it does."""
    return json.dumps(text)
