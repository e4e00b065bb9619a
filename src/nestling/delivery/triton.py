"""A model repository for Triton and KServe: one model per width, and the cascade that calls them."""

import json
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from nestling.cascade import Cascade
from nestling.delivery.cascaded import cascade_record
from nestling.delivery.triton_config import Tensor, config_text
from nestling.errors import ArgumentError, RunError
from nestling.runtime import BATCH, Network
from nestling.runtime import open as open_file
from nestling.storage import make_folder, put_folder, written_whole

_CODE = Path(__file__).with_name("triton_cascade.py")
_LABELS = "labels.txt"


def write_triton(
    files: Sequence[str | PathLike[str]],
    folder: str | PathLike[str],
    *,
    name: str = "nestling",
    cascade: Cascade | None = None,
) -> Path:
    """Write a model repository for Triton, from ONNX files of single widths that ``export`` wrote.

    Each width becomes a model ``NAME_WIDTH``, with ``1/model.onnx`` and ``config.pbtxt``. A cascade becomes the model
    ``NAME_cascade`` of Triton's Python backend, which calls them. The folder is written whole or not at all.

    Args:
        files: The files, each of another cut of the same network.
        folder: Where to write: a folder that does not exist, or is empty.
        name: How the names of the models begin; all that is no letter, digit or ``_`` is replaced by ``_``.
        cascade: A cascade of the mean weights (``samples=0``), whose stages are among the files.

    Returns:
        The folder.

    Raises:
        ArgumentError: If a file draws, takes inputs that are no batch, or lacks a stage of the cascade.
        RunError: If a file is none of nestling's, or the folder is not empty or can't be written.

    Examples:
        >>> place = nl.delivery.write_triton(["digits.onnx"], "models", name="digits")
        >>> [model.name for model in place.iterdir()]
        ['digits_0_5']
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(target, "is there already", "Choose a new folder, or remove it first.")
    networks = {Path(file): open_file(file) for file in files}
    models = _named(networks, _plain(name))
    make_folder(target.parent)
    with written_whole(target) as place:
        root = place / "models"
        for model, (path, network) in models.items():
            _write_width(root / model, model, path, network)
        if cascade is not None:
            _write_cascade(root / f"{_plain(name)}_cascade", cascade, models)
        put_folder(root, target)
    return target


def _named(networks: Mapping[Path, Network], name: str) -> dict[str, tuple[Path, Network]]:
    """The files by the names of their models."""
    found: dict[str, tuple[Path, Network]] = {}
    for path, network in networks.items():
        ports = network.about["inputs"]
        if path.suffix != ".onnx" or any("fill" in port or port["shape"][:1] != [BATCH] for port in ports):
            needed = "an ONNX file of one width, whose inputs are batches, without uncertainty="
            raise ArgumentError("files", path.name, needed, "Export each cut by itself.")
        model = f"{name}_{_plain(network.about.get('name') or path.stem)}"
        if model in found:
            raise ArgumentError("files", f"two of {model}", "files of different cuts", "Leave one out.")
        found[model] = path, network
    if not found:
        raise ArgumentError("files", "none", "at least one file", "Export a cut with nl.export.")
    return found


def _write_width(place: Path, model: str, path: Path, network: Network) -> None:
    inputs, outputs = _tensors(network)
    labels = _write_labels(place, network)
    (place / "1").mkdir(parents=True, exist_ok=True)
    (place / "1" / "model.onnx").write_bytes(path.read_bytes())
    (place / "config.pbtxt").write_text(config_text(model, "onnxruntime", inputs, outputs, labels=labels))


def _write_cascade(place: Path, cascade: Cascade, models: Mapping[str, tuple[Path, Network]]) -> None:
    """The model that calls the others: code that is the same for every network, and its stages as a parameter."""
    record = cascade_record(cascade, cascade.nested)
    by_cut = {json.dumps(network.about["cut"], sort_keys=True): model for model, (_, network) in models.items()}
    stages = []
    for stage in record["stages"]:
        model = by_cut.get(json.dumps(stage["cut"], sort_keys=True))
        if model is None:
            needed = f"a file of the stage {stage['name']} too"
            raise ArgumentError("files", ", ".join(models), needed, "Export the cut of every stage.")
        stages.append({"model": model, "temperature": stage["temperature"], "threshold": stage["threshold"]})
    _, network = models[stages[-1]["model"]]
    inputs, outputs = _tensors(network)
    outputs = [tensor for tensor in outputs if tensor.name in ("probs", "logits")]
    outputs += [Tensor("stage", "int32", (1,)), Tensor("answered", "bool", (1,))]
    labels = _write_labels(place, network)
    (place / "1").mkdir(parents=True, exist_ok=True)
    (place / "1" / "model.py").write_bytes(_CODE.read_bytes())
    parameters = {"cascade": json.dumps({"score": record["score"], "stages": stages}, allow_nan=False)}
    text = config_text(place.name, "python", inputs, outputs, labels=labels, parameters=parameters, on_cpu=True)
    (place / "config.pbtxt").write_text(text)


def _tensors(network: Network) -> tuple[list[Tensor], list[Tensor]]:
    """The inputs and outputs of a file without the batch; a size that is open is -1."""
    ports = network.about["inputs"]
    inputs = [Tensor(port["name"], port["dtype"], tuple(_size(size) for size in port["shape"][1:])) for port in ports]
    tried = network.predict({port.name: np.zeros((1, *map(abs, port.dims)), port.dtype) for port in inputs}).outputs
    return inputs, [Tensor(name, str(array.dtype), array.shape[1:] or (1,)) for name, array in tried.items()]


def _size(size: int | str) -> int:
    return -1 if isinstance(size, str) else size


def _write_labels(place: Path, network: Network) -> str | None:
    """Write the names of the classes, one per line, if they are known."""
    classes: list[Any] = network.about.get("classes") or []
    place.mkdir(parents=True, exist_ok=True)
    if not classes:
        return None
    lines = (" ".join(str(label).split()) for label in classes)
    (place / _LABELS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return _LABELS


def _plain(name: str) -> str:
    """A name of letters, digits and underscores: it is that of a folder, and part of addresses."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "nestling"
