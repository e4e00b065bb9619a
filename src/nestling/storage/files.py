"""JSON and tensors on disk: written whole or not at all, checked when read, and never unpickled."""

import glob
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from nestling.errors import RunError
from nestling.storage.lock import LOCK_FILE, FolderLock

FORMAT = 1
"""Version of the files of a run folder."""
_HEAD = "nestling"
"""The only key of a safetensors file's metadata: the order of several is not fixed, and files shall be reproducible."""
_SUM = "sha256"
_MOST_JSON = 64 * 2**20
"""No JSON file or log of a run has more bytes."""
_MOST_BYTES = 2**31
"""The tensors of a file may always take this much memory."""
_MOST_EXPANSION = 100
"""Larger tensors may take this many times the bytes of their file: bits and zeros take up to 32 times theirs."""
_PART = re.compile(r"\..+\.\d+\.[0-9a-f]{8}\.part")
"""The names of files that are being written."""
_RESTORE = "Restore it from a copy, or train again."


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a dictionary as a JSON file, with the version of the format and a checksum."""
    write_whole(path, json_bytes(content, indent=1))


def json_bytes(content: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """The bytes of a JSON file, with the version of the format and a checksum; without ``indent`` on one line."""
    record = {"format": FORMAT, **content}
    separators = (",", ":") if indent is None else None
    text = json.dumps(record | {_SUM: digest(record)}, indent=indent, separators=separators, allow_nan=False)
    return f"{text}\n".encode()


def read_json(path: Path) -> dict[str, Any]:
    """Read the dictionary that ``write_json`` wrote; a damaged file is an error that says what is wrong."""
    try:
        content = parsed(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise RunError(path, f"is not valid JSON ({_short(error)})", _RESTORE) from None
    if not isinstance(content, dict):
        raise RunError(path, "is not a file of nestling's", _RESTORE)
    check_format(path, content.get("format"))
    written = content.pop(_SUM, None)
    if written != digest(content):
        raise RunError(path, "is damaged, or was edited: its checksum does not match its content", _RESTORE)
    del content["format"]
    return content


def read_bytes(path: Path) -> bytes:
    """The content of a plain file that is not longer than any JSON file or log of a run."""
    try:
        return plain_file(path, _MOST_JSON).read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None


def digest(content: Any) -> str:  # noqa: ANN401
    """A checksum of a JSON value that does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def parsed(text: bytes | str) -> Any:  # noqa: ANN401
    """The value of a JSON text; a number that is not finite is a ValueError."""
    return json.loads(text, parse_constant=_not_a_number, parse_float=_finite)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any], *, old: Path | None = None
) -> None:
    """Write tensors and a JSON record as one safetensors file, which is read back before it replaces the old file."""
    write_whole(path, tensor_bytes(tensors, record), check=read_tensors, old=old)


def tensor_bytes(tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> bytes:
    """The bytes of a safetensors file whose metadata has the record, and a checksum over tensors and record."""
    dense = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(record, allow_nan=False)
    return save(dense, {_HEAD: json.dumps({"format": FORMAT, "record": text, _SUM: _checksum(dense, text)})})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what ``write_tensors`` wrote; a damaged file is an error that says what is wrong."""
    try:
        with safetensors.safe_open(plain_file(path), framework="pt") as file:
            head = parsed((file.metadata() or {})[_HEAD])
            check_format(path, head["format"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
        text = head["record"]
        if _checksum(tensors, text) != head[_SUM]:
            raise RunError(path, "is damaged: its checksum does not match its content", _RESTORE)
        record = parsed(text)
        if not isinstance(record, dict):
            raise RunError(path, "is not a file of nestling's", _RESTORE)
        return tensors, record
    except OSError as error:
        raise _unreadable(path, error) from None
    except (safetensors.SafetensorError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise RunError(path, f"is not a file of nestling's, or damaged ({_short(error)})", _RESTORE) from None


def write_whole(
    path: Path, content: bytes, *, check: Callable[[Path], object] | None = None, old: Path | None = None
) -> None:
    """Write a file under another name, flush it to disk, and rename it: readers see the old file or the new file.

    ``check`` reads the new file before it replaces the old file, and ``old`` is where the old file is moved.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(part)
        if old is not None and path.exists():
            os.replace(path, old)
        os.replace(part, path)
    except OSError as error:
        _remove(part)
        raise _unwritable(path, error) from error
    except BaseException:
        _remove(part)
        raise
    flush_folder(path.parent)


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A hidden folder beside ``target``, whose files ``put`` moves into place; it is removed afterwards.

    One that a killed process left is removed by the next that writes to the same place.
    """
    try:
        _remove_abandoned(target)
        made = TemporaryDirectory(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        with made as folder, FolderLock(Path(folder)):
            yield Path(folder)
    except OSError as error:
        raise _unwritable(target, error) from error


def _remove_abandoned(target: Path) -> None:
    """Remove the hidden folders of ``target`` that are locked by no process; one without a lock is just being made."""
    for folder in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        if (folder / LOCK_FILE).is_file():
            with suppress(RunError), FolderLock(folder):
                shutil.rmtree(folder, ignore_errors=True)


def put(files: Sequence[Path], source: Path, target: Path) -> list[Path]:
    """Move files from the folder ``source`` to ``target``, flushed to disk first, the first of them last."""
    places = [target / file.relative_to(source) for file in files]
    for file in files:
        with file.open("rb") as written:
            os.fsync(written.fileno())
    for file, place in reversed([*zip(files, places, strict=True)]):
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, place)
    for folder in {place.parent for place in places}:
        flush_folder(folder)
    return places


def put_folder(source: Path, target: Path) -> None:
    """Move a folder with all that is in it to a place where there is none, or an empty one, flushed to disk first."""
    for file in source.rglob("*"):
        if file.is_file():
            with file.open("rb") as written:
                os.fsync(written.fileno())
    os.replace(source, target)
    flush_folder(target.parent)


def remove_parts(folder: Path) -> None:
    """Remove the files that a killed process left half written."""
    for file in folder.iterdir():
        if _PART.fullmatch(file.name):
            _remove(file)


def _remove(file: Path) -> None:
    """Remove a file, if it is there and can be removed: a folder of that name is not ours."""
    with suppress(OSError):
        file.unlink()


def flush_folder(folder: Path) -> None:
    """Flush the renaming of files to disk, if the system can do that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def plain_file(path: Path, most: int | None = None) -> Path:
    """Return the path of a plain file that is not too long; refuse a pipe or a device."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise RunError(path, "is not a plain file", _RESTORE)
    if most is not None and status.st_size > most:
        raise RunError(path, f"is longer than {most} bytes", "It is not a file of nestling's.")
    return path


def check_memory(path: Path, num_bytes: int) -> None:
    """Refuse tensors that would take much more memory than their file could hold, before any is allocated."""
    if num_bytes > max(_MOST_BYTES, _MOST_EXPANSION * path.stat().st_size):
        raise RunError(path, f"describes tensors of {num_bytes:,} bytes", "It is not a file of nestling's.")


def check_format(path: Path, version: object) -> None:
    """Refuse a file with another version of the format."""
    if version != FORMAT or isinstance(version, bool | float):
        newer = isinstance(version, int) and version > FORMAT
        advice = "Update nestling." if newer else "It is not a run of nestling's, or an older one: train again."
        raise RunError(path, f"has format {str(version)[:20]}, and this version reads {FORMAT}", advice)


def _unreadable(path: Path, error: OSError) -> RunError:
    if isinstance(error, FileNotFoundError):
        return RunError(path, "is not there", "Give the folder that `nestling train --out` wrote.")
    return RunError(path, f"can't be read ({error.strerror or error})", "Check the path and its permissions.")


def _unwritable(path: Path, error: OSError) -> RunError:
    advice = "Check its permissions and the space on the disk."
    return RunError(path, f"can't be written ({error.strerror or error})", advice)


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(bytes_of(tensor))
    return total.hexdigest()


def tensors_digest(tensors: Iterable[Tensor]) -> str:
    """A checksum of tensors, which depends on their order."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(bytes_of(tensor))
    return total.hexdigest()


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, copied only if it is not contiguous or not on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large")
    return number


def _not_a_number(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _short(error: BaseException) -> str:
    """The message of an error, on one line of limited length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
