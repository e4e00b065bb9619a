"""Archives, read in memory: nothing is unpacked to disk, so the paths inside an archive can do no harm."""

import gzip
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from nestling.data.faults import DamagedError, DataError
from nestling.data.formats.limits import plain_file

MAX_BYTES = 1 << 30


def read_tar(path: Path, names: Sequence[str]) -> list[bytes]:
    """The contents of the files called ``names`` in a (gzipped) tar archive, in that order."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name in names and member.isreg():
                    contents[member.name] = _read_member(archive, member, path)
                if len(contents) == len(names):
                    break
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as fault:
        raise DamagedError(f"{path} is damaged: {fault}. Delete it and fetch it again.") from fault
    for name in names:
        if name not in contents:
            raise DamagedError(f"{path} has no file {name}, as the official archive has. Delete it and fetch it again.")
    return [contents[name] for name in names]


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    file = archive.extractfile(member)
    if file is None or member.size > MAX_BYTES:
        raise DamagedError(f"{path} promises {member.size} bytes in {member.name}, which is too large. Fetch it again.")
    content = file.read()
    if len(content) != member.size:
        raise DamagedError(f"{path} is damaged: {member.name} is cut short. Delete it and fetch it again.")
    return content


class Tree(ABC):
    """Files in folders, on disk or in a zip archive; names are relative, with forward slashes."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all files, sorted."""

    @abstractmethod
    def num_bytes(self, name: str) -> int:
        """How many bytes a file takes, compressed if it is."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of one file."""

    @abstractmethod
    def where(self, name: str) -> str:
        """The name of the file in error messages."""


class FolderTree(Tree):
    """The files under a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:  # noqa: D102
        files = (path.relative_to(self.folder) for path in self.folder.rglob("*") if not path.is_dir())
        return sorted(file.as_posix() for file in files)

    def num_bytes(self, name: str) -> int:  # noqa: D102
        return plain_file(self.folder / name).stat().st_size

    def read(self, name: str) -> bytes:  # noqa: D102
        if self.num_bytes(name) > MAX_BYTES:
            raise DataError(f"{self.where(name)} is too large: {self.num_bytes(name):,} bytes. Remove it.")
        return (self.folder / name).read_bytes()

    def where(self, name: str) -> str:  # noqa: D102
        return str(self.folder / name)


class ZipTree(Tree):
    """The files of a zip archive below its folder ``top``."""

    def __init__(self, path: Path, top: str = "") -> None:
        self.path = path
        self.top = top
        try:
            self.archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as fault:
            raise DamagedError(f"{path} is damaged: {fault}. Delete it and fetch it again.") from fault

    def names(self) -> list[str]:  # noqa: D102
        files = (item.filename for item in self.archive.infolist() if not item.is_dir())
        return sorted(file.removeprefix(self.top) for file in files if file.startswith(self.top))

    def num_bytes(self, name: str) -> int:  # noqa: D102
        return self._item(name).compress_size

    def read(self, name: str) -> bytes:  # noqa: D102
        try:
            item = self._item(name)
            if item.file_size > MAX_BYTES:
                raise DamagedError(f"{self.where(name)} is too large: {item.file_size} bytes. Fetch the archive again.")
            return self.archive.read(item)
        except (zipfile.BadZipFile, zlib.error, EOFError) as fault:
            raise DamagedError(f"{self.where(name)} is damaged: {fault}. Fetch the archive again.") from fault

    def where(self, name: str) -> str:  # noqa: D102
        return f"{self.path}:{self.top}{name}"

    def _item(self, name: str) -> zipfile.ZipInfo:
        try:
            return self.archive.getinfo(self.top + name)
        except KeyError:
            raise DamagedError(f"{self.path} has no file {self.top + name}. Fetch the official archive.") from None
