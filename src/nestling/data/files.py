"""Where official files lie, whether they are whole, and how they are fetched where there is a network."""

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
    """The folder of all data: ``root``, else ``$NESTLING_DATA``, else the user's cache folder."""
    return Path(root or os.environ.get(ROOT_VARIABLE) or pooch.os_cache("nestling")).expanduser()


def located(source: OfficialSet, part: str, root: Path) -> Layout | None:
    """The first layout of the part whose files are all there, whole or not."""
    folder = root / source.name
    layouts = source.parts[part]
    return next((layout for layout in layouts if all(_present(folder, file) for file in layout.files)), None)


def obtained(source: OfficialSet, part: str, root: Path, *, download: bool, verify: bool) -> tuple[Layout, list[Path]]:
    """A layout of the part with the paths of its files, fetched if they are not there and checked."""
    layout = located(source, part, root)
    if layout is None:
        _fetch_all(source, part, root, download)
        layout = located(source, part, root)
    if layout is None:
        raise MissingError(_missing(source, part, root, "they came, but are not the files of this set"))
    paths = [root / source.name / file for file in layout.files]
    for path in paths if verify else ():
        _verify(path, MD5.get(source.name, {}).get(path.name))
    return layout, paths


def how_to_get(source: OfficialSet, part: str, root: Path) -> str:
    """Which file to fetch from where, and into which folder it goes."""
    if not source.downloads:
        return f"{source.advice}, and put it into {root / source.name}"
    urls = " and ".join(source.url + file for file in source.downloads[part])
    return f"Put {urls} there ({root / source.name}), or set {ROOT_VARIABLE} to the folder that holds {source.name}/"


def _present(folder: Path, file: str) -> bool:
    """Whether the file is there, or the folder if its name ends with a slash."""
    return (folder / file).is_dir() if file.endswith("/") else (folder / file).is_file()


def _fetch_all(source: OfficialSet, part: str, root: Path, download: bool) -> None:
    if not source.downloads:
        raise MissingError(_missing(source, part, root, None))
    if not download:
        raise MissingError(_missing(source, part, root, "it was told not to"))
    mirror = os.environ.get(MIRROR_VARIABLE)
    base = f"{mirror.rstrip('/')}/{source.name}/" if mirror else source.url
    for file in source.downloads[part]:
        try:
            _fetch(base + file, root / source.name, file, MD5[source.name][file])
        except (OSError, ValueError) as fault:
            reason = "what came is not the official file" if "hash" in str(fault) else type(fault).__name__
            raise MissingError(_missing(source, part, root, f"{reason}, from {base}")) from fault


def _fetch(url: str, folder: Path, file: str, md5: str) -> None:
    """Download to a temporary name, and give the file its own only when it is whole."""
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
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        advice = "Delete it and fetch it again, or pass verify=False if it is meant to differ."
        raise DamagedError(f"{path} is damaged: its MD5 is {found}, that of the official file {md5}. {advice}")


def _missing(source: OfficialSet, part: str, root: Path, download: str | None) -> str:
    which = source.name if len(source.parts) == 1 else f"the {part} part of {source.name}"
    files = dict.fromkeys((_short(source.parts[part][0].files), _short(source.downloads.get(part, ()))))
    looked = f"looked in {root / source.name} for {' or '.join(filter(None, files))}"
    tried = f"; downloading failed ({download})" if download else ""
    return f"{which} was not found: {looked}{tried}. {how_to_get(source, part, root)}."


def _short(files: tuple[str, ...]) -> str:
    return " and ".join(files) if len(files) <= 2 else f"{files[0]} .. {files[-1]}"
