"""A run as a folder for the Hugging Face hub: data alone, with a model card; every width is in it."""

import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from nestling.delivery.formats.extras import check_extra
from nestling.delivery.model_card import model_card
from nestling.errors import ArgumentError, RunError
from nestling.running import Nested, cost
from nestling.search import CURVE_FILE, Curve
from nestling.storage import (
    GROUPS_FILE,
    WEIGHTS_FILE,
    describe,
    load,
    make_folder,
    packed,
    read_bytes,
    read_json,
    read_tensors,
    save,
    weights_digest,
    write_json,
    write_whole,
)
from nestling.training import CALIBRATION_FILE, LOG_FILE, RECIPE_FILE, SCORES_FILE, Run
from nestling.version import __version__

CONFIG_FILE = "config.json"
CARD_FILE = "README.md"
PICTURE_FILE = CURVE_FILE.replace(".json", ".png")
HUB_FILES = (
    CARD_FILE,
    CONFIG_FILE,
    WEIGHTS_FILE,
    GROUPS_FILE,
    RECIPE_FILE,
    LOG_FILE,
    CALIBRATION_FILE,
    SCORES_FILE,
    CURVE_FILE,
    PICTURE_FILE,
)
"""The files that are sent to the hub and fetched from it, and no others."""


def write_hub(network: Run | Nested, folder: str | PathLike[str], *, licence: str | None = None) -> Path:
    """Write a folder for the Hugging Face hub, which loads back offline with ``load_hub``.

    ``model.safetensors`` has the weights, all groups and how the network is built; ``config.json`` says it for readers
    and other programs; ``README.md`` is the model card, with the figures that ``evaluate`` and ``search`` measured for
    these very weights, and the picture of the curve. The folder of a run is a run itself: every command takes it. It
    says what data and recipe the run had, but not the command and the machine.

    Args:
        network: A run, or a nested network, whose card then has no figures.
        folder: Where to write.
        licence: The identifier of a licence, such as ``"apache-2.0"``, for the card.

    Returns:
        The folder.

    Raises:
        RunError: If the folder can't be written, or a file of the run is damaged.
        ArgumentError: If the folder is that of the run.

    Examples:
        >>> place = nl.delivery.write_hub(run, "digits-hub", licence="apache-2.0")
        >>> sorted(path.name for path in place.iterdir())[:3]
        ['README.md', 'calibration.json', 'config.json']
    """
    nested = network.nested if isinstance(network, Run) else network
    place = make_folder(folder)
    source = network.folder if isinstance(network, Run) else None
    if source is not None and source.resolve() == place.resolve():
        raise ArgumentError("folder", str(place), "a folder other than the run's own", "Choose another name.")
    figures: dict[str, Any] = {}
    if source is None:
        save(nested, place)
    else:
        figures = _copy_run(source, place, nested)
    run = network if isinstance(network, Run) else None
    config = config_of(nested, run)
    write_whole(place / CONFIG_FILE, (json.dumps(config, indent=1, allow_nan=False) + "\n").encode())
    card = model_card(place.name, config, figures, picture=(place / PICTURE_FILE).exists(), licence=licence)
    write_whole(place / CARD_FILE, card.encode())
    return place


def load_hub(
    place: str | PathLike[str], module: nn.Module | None = None, *, revision: str | None = None, trust: bool = False
) -> Nested:
    """The nested network, in eval mode, of a folder that ``write_hub`` wrote, or of a repository of the hub.

    Nothing is unpickled. A folder is read without a network connection.

    Args:
        place: A folder, or the name of a repository, ``"user/name"``, which is fetched first.
        module: As in ``load``: the network itself, where the files can't say how it is built.
        revision: The branch, tag or commit of a repository.
        trust: As in ``load``: whether to run code of yours that the files name.

    Returns:
        The network with all its widths.

    Raises:
        RunError: If a file is damaged, or no nested network of nestling's.
        ArgumentError: If a repository is to be fetched, and huggingface_hub is not installed.

    Examples:
        >>> again = nl.delivery.load_hub(nl.delivery.write_hub(nested, "digits-shared"))
        >>> torch.equal(again(images), nested(images))
        True
    """
    folder = Path(place)
    if not folder.is_dir():
        check_extra("hub", "huggingface_hub")
        from huggingface_hub import snapshot_download

        try:
            fetched = snapshot_download(str(place), revision=revision, allow_patterns=list(HUB_FILES))
        except Exception as error:  # of the connection, of the hub, or of a name that is none
            reason = f"is no folder, and can't be fetched from the hub ({' '.join(str(error).split())[:200]})"
            raise RunError(place, reason, "Check the name and the connection.") from None
        folder = Path(fetched)
    return load(folder, module, trust=trust)


def push_hub(folder: str | PathLike[str], repository: str, *, private: bool = True) -> str:
    """Send a folder that ``write_hub`` wrote to a repository of the hub.

    The repository is made if it does not exist. Only the files of ``HUB_FILES`` are sent, after the weights were read.

    Args:
        folder: What ``write_hub`` wrote.
        repository: ``"user/name"``; you must be logged in to the hub.
        private: Whether a new repository is private.

    Returns:
        The address of the repository.

    Raises:
        RunError: If the folder holds no such network.
        ArgumentError: If huggingface_hub is not installed.

    Examples:
        >>> nl.delivery.push_hub("digits-hub", "me/digits-nested")  # doctest: +SKIP
        'https://huggingface.co/me/digits-nested'
    """
    check_extra("hub", "huggingface_hub")
    from huggingface_hub import HfApi

    place = Path(folder)
    read_tensors(place / WEIGHTS_FILE)
    if not (place / CARD_FILE).exists():
        raise RunError(place, "has no model card", "Write it with nestling export RUN --to hub.")
    hub = HfApi()
    address = str(hub.create_repo(repository, private=private, exist_ok=True))
    hub.upload_folder(repo_id=repository, folder_path=place, allow_patterns=list(HUB_FILES))
    return address


def config_of(nested: Nested, run: Run | None) -> dict[str, Any]:
    """What readers and other programs may want to know without reading tensors."""
    described = describe(nested)
    whole = cost(nested, 1.0)
    config: dict[str, Any] = {"library_name": "nestling", "nestling_version": __version__, "model": described["model"]}
    config |= {"nest": described["nest"], "params": whole.params, "macs": whole.macs}
    config["groups"] = {group.name: group.num_blocks for group in nested.groups.free}
    if run is not None:
        kept = ("name", "task", "input_shape", "classes", "mean", "std", "as_bytes")
        config["data"] = {key: run.data[key] for key in kept if key in run.data}
        config["likelihood"] = run.likelihood
        config["recipe"] = run.recipe.to_dict()
        config["calibrations"] = [calibration.to_dict() for calibration in run.calibrations]
    return config


def _copy_run(source: Path, target: Path, nested: Nested) -> dict[str, Any]:
    """Copy the files of a run to another folder, and return those of its figures that are of its present weights."""
    recipe = read_json(source / RECIPE_FILE)
    made_by = recipe.get("made_by", {})
    write_json(target / RECIPE_FILE, recipe | {"made_by": {k: v for k, v in made_by.items() if k != "command"}})
    write_whole(target / WEIGHTS_FILE, (source / WEIGHTS_FILE).read_bytes(), check=read_tensors)
    for name in (GROUPS_FILE, LOG_FILE, CALIBRATION_FILE):
        if (source / name).exists():
            write_whole(target / name, read_bytes(source / name))
    figures = {}
    weights = weights_digest(packed(nested)[0])
    for name, content in _figures(source):
        if content.get("weights") == weights:
            figures[name] = content
            write_whole(target / name, read_bytes(source / name))
    if CURVE_FILE in figures and (source / PICTURE_FILE).exists():
        write_whole(target / PICTURE_FILE, read_bytes(source / PICTURE_FILE))
    return figures


def _figures(source: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The files of a run that have figures, with their content."""
    if (source / SCORES_FILE).exists():
        yield SCORES_FILE, read_json(source / SCORES_FILE)
    if (source / CURVE_FILE).exists():
        curve = Curve.read(source / CURVE_FILE)
        rows = [{**vars(row), "kept": row.cut.num_blocks / curve.rows[-1].cut.num_blocks} for row in curve.rows]
        yield CURVE_FILE, {"rows": rows, "cost": curve.cost, "weights": curve.weights}
