"""A smaller plain network as a folder of data alone: its graph, its weights, and a record of it."""

import hashlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nestling.data import normalised
from nestling.delivery.about import known_of
from nestling.delivery.small_record import NORMALISED_BY, checked_record
from nestling.errors import ArgumentError, RunError, ShapeError
from nestling.prediction import Prediction, predict
from nestling.pruning import PRUNED_FILE
from nestling.running import NUM_PAIRS, Call, PlainGraph, Program, check_num_pairs, program_of
from nestling.storage import (
    GRAPH_FILE,
    Packing,
    PlainFiles,
    make_folder,
    plain_file,
    plain_files,
    plain_network,
    read_json,
    write_json,
    write_whole,
)

PROGRAM_FILE = "network.pt2"
WEIGHTS_FILE = "weights.safetensors"
ABOUT_FILE = "small.json"
_AGAIN = "Extract the network again."


class SmallNetwork(PlainGraph):
    """A small network out of its folder, in eval mode; ``about`` is its record, which ``predict`` goes by.

    Called, it takes inputs as it was trained on, and gives what the extracted network gives. ``load_small`` makes one.

    Args:
        plan: The operations of the network, as its folder has them.
        tensors: The weights by name.
        buffers: The names of tensors that are no parameters.
        hidden: The names of tensors that are left out of its state.
        shared: Names that stand for the same tensor.

    Examples:
        >>> about = nl.delivery.small_record(run.data, nested.likelihood, run.calibration(0.5))
        >>> small = nl.delivery.save_small(nl.extract(nested, 0.5), nested.example, "small", about)
        >>> answer = small.predict(data.test.inputs[:5])  # bytes, as they are in files
        >>> tuple(answer.probs.shape)
        (5, 10)
    """

    about: Mapping[str, Any]

    def predict(self, x: Tensor, *, batch_size: int | None = None) -> Prediction:
        """The calibrated prediction for inputs (N, ...) as they are in files: they are normalised here.

        Args:
            x: Bytes, or floats on the scale of the training data ([0, 1] if these were bytes).
            batch_size: How many examples run at once; None for all.

        Returns:
            The prediction, with the run's temperature and conformal sets if the run was calibrated at this cut.

        Raises:
            RunError: The record does not say what the network takes, as for one trained on loaders of yours.
            ShapeError: The inputs have another shape.
        """
        data = self.about.get("data") or {}
        if any(data.get(key) is None for key in NORMALISED_BY):
            advice = "Normalise them as in training, and call nl.predict(small, x, likelihood=...)."
            raise RunError(ABOUT_FILE, "does not say how inputs are normalised", advice)
        if tuple(x.shape[1:]) != tuple(data["input_shape"]):
            needed = f"(N, {', '.join(map(str, data['input_shape']))})"
            raise ShapeError("x", f"shape {tuple(x.shape)}", needed, "Resize the inputs, or put the channels first.")
        if x.dtype == torch.uint8 and not data["as_bytes"]:
            raise ArgumentError("x", "bytes", "floats on the scale of the training data", "Convert them.")
        known, inputs = known_of(self.about), normalised(x, data["mean"], data["std"])
        options: dict[str, Any] = {"likelihood": known.likelihood, "calibration": known.calibration}
        return predict(self, inputs, samples=0, batch_size=batch_size, **options)


def save_small(
    network: nn.Module,
    example: Call,
    folder: str | PathLike[str],
    about: Mapping[str, Any],
    packing: Packing | None = None,
    *,
    program: bool = False,
) -> SmallNetwork:
    """Write a plain network as a folder of data, which ``load_small`` reads.

    Args:
        network: A plain network, such as ``extract`` gives.
        example: The arguments of a call, positional and by name, such as ``nested.example``.
        folder: Where to write; it is made if it does not exist.
        about: The record of the network, as ``small_record`` makes it, with anything else that JSON can hold.
        packing: How quantised weights are stored.
        program: Also write ``network.pt2``, which ``torch.export.load`` runs without nestling. torch unpickles parts of
            such a file, which can run any code: load only files of your own.

    Returns:
        The network as it was read back from the folder.

    Raises:
        TraceError: The network has something that a graph in JSON can't hold.

    Examples:
        >>> half = nl.extract(nested, 0.5)
        >>> small = nl.delivery.save_small(half, nested.example, "small", nl.delivery.small_record(run.data))
        >>> torch.allclose(small(images), half(images))
        True
    """
    files = plain_files(network, example, packing)
    stored = program_of(network, example) if program else None
    write_small(files, folder, about, program=stored)
    return load_small(folder)


def write_small(
    files: PlainFiles,
    folder: str | PathLike[str],
    about: Mapping[str, Any],
    tensors_file: str = WEIGHTS_FILE,
    *,
    program: Program | None = None,
) -> None:
    """Write the files of a small network and its record, which has their checksums and is written last."""
    target = make_folder(folder)
    contents = {GRAPH_FILE: files.graph, tensors_file: files.tensors}
    for name, content in contents.items():
        write_whole(target / name, content)
    if program is not None:
        write_whole(target / PROGRAM_FILE, program.content)
    else:
        (target / PROGRAM_FILE).unlink(missing_ok=True)  # of the network that was here before
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    write_about(target, {**about, "files": digests})


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Write the record of a small network."""
    write_json(folder / ABOUT_FILE, about)


def load_small(folder: str | PathLike[str], num_pairs: int = NUM_PAIRS) -> SmallNetwork:
    """The network that ``nestling extract`` or ``prune`` wrote, in eval mode, for batches of any size.

    The folder is data: its graph names operations of torch, of which only a fixed list is allowed, and nothing is
    unpickled. The network runs once, and must answer what it did when it was written.

    Args:
        folder: The folder with ``network.json``, ``small.json`` and the weights.
        num_pairs: A network that was extracted with all bits can be loaded with fewer: the largest number of pairs of
            levels per quantised weight. The norms have the statistics for that number.

    Returns:
        The network, with its record as ``about``, and ``predict`` for inputs that are not normalised.

    Raises:
        RunError: The folder is damaged, foreign, or of a version that wrote programs for torch to unpickle.

    Examples:
        >>> about = nl.delivery.small_record(run.data)
        >>> _ = nl.delivery.save_small(nl.extract(nested, 0.5), nested.example, "small", about)
        >>> small = nl.load_small("small")
        >>> tuple(small(torch.zeros(5, 1, 8, 8)).shape)
        (5, 10)
    """
    source = Path(folder)
    check_num_pairs(num_pairs)
    if not (source / ABOUT_FILE).exists():
        raise RunError(source / ABOUT_FILE, "is not there", "Give the folder that `nestling extract` wrote.")
    about = read_json(source / ABOUT_FILE)
    digests = about.get("files")
    if digests is None and (source / PRUNED_FILE).exists():
        advice = f"Read {PRUNED_FILE} with nl.load_pruned and the network's code, and export that with data=."
        raise RunError(source / ABOUT_FILE, "is of a pruned network whose graph could not be stored", advice)
    if digests is None:
        problem = f"is of a version that wrote {PROGRAM_FILE}, which torch unpickles and nestling does not read"
        raise RunError(source / ABOUT_FILE, problem, _AGAIN)
    if not isinstance(digests, dict) or set(digests) not in (
        {GRAPH_FILE, name} for name in (WEIGHTS_FILE, PRUNED_FILE)
    ):
        raise RunError(source / ABOUT_FILE, "does not name the files of a network", _AGAIN)
    for name, digest in digests.items():
        _check_digest(source / name, digest)
    checked_record(source / ABOUT_FILE, about)
    tensors = source / next(name for name in digests if name != GRAPH_FILE)
    network = plain_network(source / GRAPH_FILE, tensors, num_pairs, made=SmallNetwork)
    network.about = about
    return network


def _check_digest(path: Path, digest: object) -> None:
    """Refuse a file that is not the one that was written with the record."""
    try:
        with plain_file(path).open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunError(path, f"can't be read ({error.strerror or error})", _AGAIN) from None
    if actual != digest:
        raise RunError(path, f"is damaged, or of another network than {ABOUT_FILE}", _AGAIN)
