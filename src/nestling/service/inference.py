"""Requests for inference: what a body of the Open Inference Protocol asks for, and the answer as bytes."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nestling.service.cascading import Cascading, until_probable
from nestling.service.dispatcher import Answer, Wish
from nestling.service.engine import WIDTH, Engine
from nestling.service.refusals import Refused, shown
from nestling.service.tensors import Object, read_tensor, split_body, write_tensor
from nestling.service.width import Arrays

HEADER_LENGTH = "inference-header-content-length"
"""The header that says how many bytes of a body are JSON."""


@dataclass(frozen=True, eq=False)
class Inference:
    """A request: its inputs, what it wishes, and its outputs by name, each with whether it is to be binary."""

    inputs: Arrays
    wish: Wish
    outputs: Mapping[str, bool]
    id: str | None = None


def read_inference(
    body: bytes, header_length: str | None, engine: Engine, most: int, fitted: Cascading | None
) -> Inference:
    """What a body asks for.

    Args:
        body: JSON, and the bytes of tensors behind it.
        header_length: the value of the header ``Inference-Header-Content-Length``, if there is one.
        engine: the network.
        most: the most examples in one request.
        fitted: the cascade whose thresholds were fitted, if there is one.

    Raises:
        Refused: with status 400, if anything does not fit.
    """
    asked, tail = split_body(body, header_length)
    parameters = _object(asked.get("parameters"), "parameters")
    inputs, tail = _inputs(asked, engine, most, tail)
    if len(tail):
        raise Refused(400, f"{len(tail)} bytes follow the last tensor")
    number = asked.get("id")
    if number is not None and not isinstance(number, str):
        raise Refused(400, f"id must be text, and is {shown(number)}")
    outputs = _outputs(asked, engine.output_names, binary=parameters.get("binary_data_output") is True)
    return Inference(inputs, wish_of(parameters, engine, fitted), outputs, number)


def _inputs(asked: Object, engine: Engine, most: int, tail: memoryview) -> tuple[Arrays, memoryview]:
    entries = asked.get("inputs")
    ports = {port.name: port for port in engine.ports}
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise Refused(400, f"inputs must be a list of tensors, and is {shown(entries)}")
    given = [entry.get("name") for entry in entries]
    if sorted(map(str, given)) != sorted(ports):
        raise Refused(400, f"inputs must be one tensor for each of {', '.join(ports)}, and are {shown(given)}")
    arrays = {}
    for entry in entries:
        port = ports[entry["name"]]
        array, tail = read_tensor(entry, port.dtype, tail)
        if not array.ndim or not port.fits(array.shape):
            needed = ", ".join("any" if size is None else str(size) for size in port.shape)
            raise Refused(400, f"input {port.name} has shape {list(array.shape)}, not [examples, {needed}]")
        arrays[port.name] = array
    sizes = {len(array) for array in arrays.values()}
    if len(sizes) > 1 or not 1 <= min(sizes) <= most:
        raise Refused(400, f"a request has from 1 to {most} examples, and this one has {sorted(sizes)}")
    return {name: arrays[name] for name in ports}, tail


def _outputs(asked: Object, names: tuple[str, ...], *, binary: bool) -> dict[str, bool]:
    entries = asked.get("outputs")
    if entries is None or entries == []:
        return dict.fromkeys(names, binary)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise Refused(400, f"outputs must be a list of names, and is {shown(entries)}")
    wanted = {}
    for entry in entries:
        name, parameters = entry.get("name"), _object(entry.get("parameters"), "parameters")
        if not isinstance(name, str) or name not in names:
            raise Refused(400, f"there is no output {shown(name)}: there are {', '.join(names)}")
        if "classification" in parameters or "shared_memory_region" in parameters:
            raise Refused(400, "outputs can't be classified here, or put into shared memory: ask for the tensor")
        wanted[name] = parameters.get("binary_data", binary) is True
    return wanted


def wish_of(parameters: Object, engine: Engine, fitted: Cascading | None) -> Wish:
    """What the parameters ``width``, ``budget_ms`` and ``confidence`` ask for, of which there may be one."""
    given = {
        name: parameters[name] for name in ("width", "budget_ms", "confidence") if parameters.get(name) is not None
    }
    if len(given) > 1:
        raise Refused(400, f"{' and '.join(given)} can't go together: choose one")
    if "width" in given:
        return Wish(width=_width(given["width"], engine))
    if "budget_ms" in given:
        budget = _number(given["budget_ms"], "budget_ms")
        if not 0 < budget <= _LONGEST_MS:
            raise Refused(400, f"budget_ms must be above 0 and at most {_LONGEST_MS}, and is {shown(budget)}")
        return Wish(budget=budget / 1000)
    if "confidence" in given:
        return Wish(cascade=_cascade(given["confidence"], engine, fitted))
    return Wish()


def _width(value: object, engine: Engine) -> int:
    name = f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else value
    number = engine.width_named(name) if isinstance(name, str) else None
    if number is None:
        names = ", ".join(width.name for width in engine.widths)
        raise Refused(400, f"there is no width {shown(value)}: there are {names}")
    return number


def _cascade(value: object, engine: Engine, fitted: Cascading | None) -> Cascading:
    if not engine.tells_classes:
        raise Refused(400, "confidence needs a network that gives each example one class")
    if value is True or value == "fitted":
        if fitted is None:
            raise Refused(400, "no cascade was fitted for this network: give confidence as a probability")
        return fitted
    probability = _number(value, "confidence")
    if not 0 < probability <= 1:
        raise Refused(400, f"confidence must be a probability above 0, or 'fitted', and is {shown(value)}")
    return until_probable(engine.widths, probability)


def _number(value: object, name: str) -> float:
    """A number, also as text, as it stands in a query."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise Refused(400, f"{name} must be a number, and is {shown(value)}")
    return number


def _object(value: object, name: str) -> Object:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refused(400, f"{name} must be an object, and is {shown(value)}")
    return value


def written(asked: Inference, answer: Answer, head: Mapping[str, Any], engine: Engine) -> tuple[bytes, int | None]:
    """The body of an answer, and how much of it is JSON (None for all); ``head`` has the entries beside the outputs."""
    names = np.array([width.name for width in engine.widths])
    outputs = {**answer.outputs, WIDTH: names[answer.widths]}
    pairs = [write_tensor(name, outputs[name], binary=binary) for name, binary in asked.outputs.items()]
    content: dict[str, Any] = dict(head) | {"outputs": [entry for entry, _ in pairs]}
    if asked.id is not None:
        content["id"] = asked.id
    text = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    if not any(asked.outputs.values()):
        return text, None
    return b"".join([text, *(tail for _, tail in pairs)]), len(text)


_LONGEST_MS = 3_600_000
