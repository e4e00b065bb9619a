"""Finds official files, checks their checksums, and fetches missing files if there is a network connection."""

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import pooch  # type: ignore[import-untyped]

from nestling.data.checksums import MD5
from nestling.data.faults import DamagedError, MissingError
from nestling.data.sources import Layout, OfficialSet

ROOT_VARIABLE = "NESTLING_DATA"
MIRROR_VARIABLE = "NESTLING_MIRROR"
CONNECT_SECONDS, SILENCE_SECONDS = 5, 30
CHUNK_BYTES = 1 << 16


def data_root(root: Path | str | None = None) -> Path:
    """The folder that all named data sets are in.

    Args:
        root: A folder of your choice; None for ``$NESTLING_DATA`` or, where that is not set, the user's cache folder.

    Returns:
        The folder, which need not exist yet. A data set is in the folder of its name in it.

    Examples:
        >>> nl.data.data_root("downloads").name
        'downloads'
    """
    return Path(root or os.environ.get(ROOT_VARIABLE) or pooch.os_cache("nestling")).expanduser()


def find_layout(data_set: OfficialSet, part: str, root: Path) -> Layout | None:
    """The first layout of the part whose files are all present, complete or not."""
    folder = root / data_set.name
    layouts = data_set.parts[part]
    return next((layout for layout in layouts if all(_present(folder, file) for file in layout.files)), None)


def obtain(data_set: OfficialSet, part: str, root: Path, *, download: bool, verify: bool) -> tuple[Layout, list[Path]]:
    """Find or fetch the files of a part and check them; returns its layout and the paths of the files."""
    layout = find_layout(data_set, part, root)
    if layout is None:
        _fetch_all(data_set, part, root, download)
        layout = find_layout(data_set, part, root)
    if layout is None:
        raise MissingError(_missing(data_set, part, root, "the downloaded files are not those of this set"))
    paths = [root / data_set.name / file for file in layout.files]
    for path in paths if verify else ():
        _verify(path, MD5.get(data_set.name, {}).get(path.name))
    return layout, paths


def how_to_get(data_set: OfficialSet, part: str, root: Path) -> str:
    """Says which files to fetch, from where, and into which folder to put them."""
    if not data_set.downloads:
        return f"{data_set.advice}, and put it into {root / data_set.name}"
    urls = " and ".join(data_set.url + file for file in data_set.downloads[part])
    folder = root / data_set.name
    return f"Put {urls} there ({folder}), or set {ROOT_VARIABLE} to the folder that holds {data_set.name}/"


def _present(folder: Path, file: str) -> bool:
    """Whether the file is present, or the folder if the name ends with a slash."""
    return (folder / file).is_dir() if file.endswith("/") else (folder / file).is_file()


def _fetch_all(data_set: OfficialSet, part: str, root: Path, download: bool) -> None:
    if not data_set.downloads:
        raise MissingError(_missing(data_set, part, root, None))
    if not download:
        raise MissingError(_missing(data_set, part, root, "download=False"))
    mirror = os.environ.get(MIRROR_VARIABLE)
    base = f"{mirror.rstrip('/')}/{data_set.name}/" if mirror else data_set.url
    for file in data_set.downloads[part]:
        try:
            _fetch(base + file, root / data_set.name, file, MD5[data_set.name][file])
        except (OSError, ValueError) as fault:
            reason = "the downloaded file is not the official one" if "hash" in str(fault) else type(fault).__name__
            raise MissingError(_missing(data_set, part, root, f"{reason}, from {base}")) from fault


def _fetch(url: str, folder: Path, file: str, md5: str) -> None:
    """Download to a temporary name, and rename the file only when it is complete."""
    if (folder / file).exists():
        return
    pooch.get_logger().setLevel("WARNING")
    responses: list[Any] = []  # pooch leaves a connection open when it fails
    downloader = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(),
        chunk_size=CHUNK_BYTES,
        timeout=(CONNECT_SECONDS, SILENCE_SECONDS),
        hooks={"response": lambda response, **_: responses.append(response)},
    )
    try:
        pooch.retrieve(url, f"md5:{md5}", fname=file, path=folder, downloader=downloader)
    finally:
        for response in responses:
            response.close()


def _verify(path: Path, md5: str | None) -> None:
    if md5 is None or path.is_dir():
        return
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if checksum != md5:
        advice = "Delete it and fetch it again, or pass verify=False if it is meant to differ."
        raise DamagedError(f"{path} is damaged: its MD5 is {checksum}, that of the official file {md5}. {advice}")


def _missing(data_set: OfficialSet, part: str, root: Path, download: str | None) -> str:
    what = data_set.name if len(data_set.parts) == 1 else f"the {part} part of {data_set.name}"
    files = dict.fromkeys((_short(data_set.parts[part][0].files), _short(data_set.downloads.get(part, ()))))
    searched = f"looked in {root / data_set.name} for {' or '.join(filter(None, files))}"
    tried = f"; downloading failed ({download})" if download else ""
    return f"{what} was not found: {searched}{tried}. {how_to_get(data_set, part, root)}."


def _short(files: tuple[str, ...]) -> str:
    return " and ".join(files) if len(files) <= 2 else f"{files[0]} .. {files[-1]}"
