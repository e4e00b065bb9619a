"""JSON and tensors on disk: written whole or not at all, checked when read, and never unpickled."""

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from nestling.errors import RunError

FORMAT = 1
"""Version of the files of a run folder."""
_HEAD = "nestling"
"""Key of a safetensors file's metadata; one only, since their order is not fixed and files shall be the same."""
_MOST_JSON = 64 * 2**20
"""No JSON of a run is longer than this many bytes."""


def write_json(path: Path, content: Any) -> None:  # noqa: ANN401
    """Write a JSON file."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_whole(path, text.encode())


def read_json(path: Path) -> Any:  # noqa: ANN401
    """Read a JSON file."""
    try:
        if path.stat().st_size > _MOST_JSON:
            raise RunError(path, f"is longer than {_MOST_JSON} bytes", "It is not a file of nestling's.")
        return json.loads(path.read_bytes(), parse_constant=_no_constant)
    except FileNotFoundError:
        raise RunError(path, "is not there", "Give the folder that `nestling train --out` wrote.") from None
    except (ValueError, RecursionError) as error:
        raise RunError(path, f"is not valid JSON ({error})", "Restore it from a copy, or train again.") from None
    except OSError as error:
        raise RunError(
            path, f"can't be read ({error.strerror or error})", "Check the path and its permissions."
        ) from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Write tensors and a JSON record beside them as one safetensors file with a checksum over both."""
    dense = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(record, allow_nan=False)
    head = {"format": FORMAT, "record": text, "sha256": _checksum(dense, text)}
    write_whole(path, save(dense, {_HEAD: json.dumps(head)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what ``write_tensors`` wrote, or say what is wrong with it."""
    advice = "Restore it from a copy, or train again."
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            head = json.loads((file.metadata() or {})[_HEAD], parse_constant=_no_constant)
            check_format(path, head["format"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
        text = head["record"]
        if _checksum(tensors, text) != head["sha256"]:
            raise RunError(path, "is damaged: its checksum does not fit its content", advice)
        return tensors, json.loads(text, parse_constant=_no_constant)
    except FileNotFoundError:
        raise RunError(path, "is not there", "Give the folder that `nestling train --out` wrote.") from None
    except OSError as error:
        raise RunError(
            path, f"can't be read ({error.strerror or error})", "Check the path and its permissions."
        ) from None
    except (safetensors.SafetensorError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise RunError(path, f"is not a file of nestling's, or damaged ({error})", advice) from None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place, flush it to disk, and move it there: readers see the old one or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        advice = "Check its permissions and the space on the disk."
        raise RunError(path, f"can't be written ({error.strerror or error})", advice) from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _unreadable(path: Path, error: OSError) -> RunError:
    return RunError(path, f"can't be read ({error.strerror or error})", "Check the path and its permissions.")


def check_format(path: Path, found: object) -> None:
    """Refuse a file of another version."""
    if str(found) != str(FORMAT):
        newer = str(found).isdigit() and int(str(found)) > FORMAT
        advice = "Update nestling." if newer else "It is not a run of nestling's, or an older one: train again."
        raise RunError(path, f"has format {str(found)[:20]}, and this version reads {FORMAT}", advice)


def _flush_folder(folder: Path) -> None:
    """Have the move itself on disk, where the system can do that."""
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


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _no_constant(name: str) -> Callable[[], None]:
    raise ValueError(f"{name} is not a number")
