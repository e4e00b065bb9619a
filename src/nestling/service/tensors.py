"""Tensors of the Open Inference Protocol, version 2, read from a request and written into an answer."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nestling.service.refusals import Refused, shown

DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
"""The protocol's names of dtypes."""
TEXT = "BYTES"
"""The protocol's name of tensors of text."""
_KINDS = {"b": "b", "u": "ui", "i": "ui", "f": "uif"}
"""Which kinds of JSON values a dtype takes."""
Object = Mapping[str, Any]


def split_body(body: bytes, header_length: str | None) -> tuple[Object, memoryview]:
    """The JSON object of a request, and the bytes of its tensors behind it.

    ``header_length`` is the value of the header ``Inference-Header-Content-Length``; None if all of it is JSON.
    """
    length = len(body)
    if header_length is not None:
        is_number = header_length.isascii() and header_length.isdecimal() and len(header_length) < _DIGITS
        if not is_number or int(header_length) > len(body):
            given = f"Inference-Header-Content-Length is {shown(header_length)}"
            raise Refused(400, f"{given}, but the body has {len(body)} bytes")
        length = int(header_length)
    return json_object(body[:length]), memoryview(body)[length:]


def json_object(text: bytes) -> Object:
    """A JSON object, without the numbers that JSON does not have."""
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON that can be read: {error}") from None
    if not isinstance(found, dict):
        raise Refused(400, f"the body must be a JSON object, and is {shown(found)}")
    return found


def read_tensor(entry: Object, dtype: str, tail: memoryview) -> tuple[np.ndarray, memoryview]:
    """The tensor of an entry of ``inputs``, and the bytes that follow it in ``tail``."""
    name, shape = entry.get("name"), _shape(entry)
    if entry.get("datatype") != DATATYPES[dtype]:
        raise Refused(400, f"input {shown(name)} has datatype {shown(entry.get('datatype'))}, not {DATATYPES[dtype]}")
    parameters = entry.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise Refused(400, f"the parameters of input {shown(name)} must be an object")
    if "shared_memory_region" in parameters:
        raise Refused(400, "there is no shared memory: send the tensors")
    size = parameters.get("binary_data_size")
    if size is None:
        return _finite(_from_json(entry, dtype).reshape(shape), name), tail
    needed = math.prod(shape) * np.dtype(dtype).itemsize
    if isinstance(size, bool) or size != needed or size > len(tail) or "data" in entry:
        given = f"input {shown(name)} has binary_data_size {shown(size)}"
        raise Refused(400, f"{given}, but needs {needed} bytes, of which {len(tail)} are left, and no data")
    array = np.frombuffer(tail[:needed], np.dtype(dtype).newbyteorder("<")).reshape(shape)
    if dtype == "bool" and (array.view(np.uint8) > 1).any():
        raise Refused(400, f"input {shown(name)} has bytes that are neither 0 nor 1")
    return _finite(array.astype(dtype, copy=False), name), tail[needed:]


def _shape(entry: Object) -> tuple[int, ...]:
    shape = entry.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size <= _MOST for size in shape):
        raise Refused(400, f"input {shown(entry.get('name'))} has shape {shown(shape)}, not a list of sizes")
    if len(shape) > _AXES or math.prod(shape) > _MOST:
        raise Refused(400, f"input {shown(entry.get('name'))} has shape {shown(shape)}, which is too large")
    return tuple(shape)


def _from_json(entry: Object, dtype: str) -> np.ndarray:
    """The values of ``data``, nested or flat."""
    name, shape = shown(entry.get("name")), _shape(entry)
    if not isinstance(entry.get("data"), list):
        raise Refused(400, f"input {name} has no list of data, and no binary_data_size")
    try:
        given = np.array(entry["data"])
    except (ValueError, OverflowError, RecursionError):
        raise Refused(400, f"the data of input {name} are lists of different lengths") from None
    wanted = np.dtype(dtype)
    if given.size != math.prod(shape) or (given.size and given.shape not in ((given.size,), shape)):
        raise Refused(400, f"input {name} has data of shape {given.shape}, not {shape}")
    if given.size and given.dtype.kind not in _KINDS[wanted.kind]:
        raise Refused(400, f"the data of input {name} must be {DATATYPES[dtype]}")
    if wanted.kind in "ui" and given.size:
        info = np.iinfo(wanted)
        if given.min() < info.min or given.max() > info.max:
            raise Refused(400, f"the data of input {name} do not fit into {DATATYPES[dtype]}")
    with np.errstate(over="ignore"):
        return given.astype(wanted)


def _finite(array: np.ndarray, name: object) -> np.ndarray:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise Refused(400, f"input {shown(name)} has values that are not finite")
    return array


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def write_tensor(name: str, array: np.ndarray, *, binary: bool) -> tuple[dict[str, Any], bytes]:
    """The entry of a tensor for ``outputs``, and its bytes behind the JSON."""
    is_text = array.dtype.kind == "U"
    entry: dict[str, Any] = {"name": name, "shape": list(array.shape)}
    entry["datatype"] = TEXT if is_text else DATATYPES[array.dtype.name]
    if not binary:
        return entry | {"data": array.ravel().tolist()}, b""
    if is_text:
        words = [str(word).encode() for word in array.ravel()]
        content = b"".join(len(word).to_bytes(4, "little") + word for word in words)
    else:
        content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return entry | {"parameters": {"binary_data_size": len(content)}}, content


_MOST, _AXES, _DIGITS = 2**31, 16, 12
