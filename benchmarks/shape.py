"""The shape of the library: files and lines by floor, parameters, imports across rooms, switches of floor in a step.

It describes the package that is imported, so that two commits are compared with ``PYTHONPATH=other/src``.
"""

import ast
import json
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch

import nestling as nl
from nestling.training import loop

SOURCE = Path(nl.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
CATCH_ALL = ("own", "found")
"""Names that say nothing of what they stand for."""
MOST = 8
"""How many functions with the most parameters are shown."""


def main() -> None:
    names = Counter(name for path in FILES for name in bound(path))
    answers: dict[str, dict[str, Any]] = {
        "files and lines": files_and_lines(),
        "parameters": parameters(),
        "imports from other rooms": imports(),
        "catch-all names": {name: names[name] for name in CATCH_ALL},
        "switches of floor in a training step": switches(),
    }
    for question, answer in answers.items():
        print(json.dumps({"question": question} | answer))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def files_and_lines() -> dict[str, Any]:
    lines = {path: len(path.read_text().splitlines()) for path in FILES}
    rooms: dict[str, list[int]] = {}
    for path in FILES:
        files = rooms.setdefault(room_of(path) if path.parent != SOURCE else "beside the rooms", [0, 0, 0])
        files[:] = files[0] + 1, files[1] + lines[path], max(files[2], lines[path])
    columns = ("files", "lines", "longest")
    table = {room: dict(zip(columns, numbers, strict=True)) for room, numbers in sorted(rooms.items())}
    return {"files": len(FILES), "lines": sum(lines.values()), "longest": max(lines.values()), "rooms": table}


def parameters() -> dict[str, Any]:
    """The functions with the most parameters; those of overloads stand once."""
    numbers: dict[str, int] = {}
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                given = node.args
                name = f"{path.relative_to(SOURCE)}:{node.name}"
                number = len(given.posonlyargs + given.args + given.kwonlyargs)
                numbers[name] = max(number, numbers.get(name, 0))
    largest = dict(sorted(numbers.items(), key=lambda entry: -entry[1])[:MOST])
    return {"functions": len(numbers), "with 8 or more": sum(n >= 8 for n in numbers.values()), "largest": largest}


def imports() -> dict[str, Any]:
    """How many there are, and how many of them name a file of the other room and not its door."""
    packages = {".".join(path.parent.relative_to(SOURCE.parent).parts) for path in FILES if path.stem == "__init__"}
    across = inside = 0
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nestling."):
                parts = str(node.module).split(".")
                if parts[1] != room_of(path):
                    across += 1
                    inside += len(parts) > 2 and node.module not in packages
    return {"number": across, "that reach inside": inside}


def bound(path: Path) -> list[str]:
    """The names that a file binds: variables, parameters and functions."""
    names = [n.id for n in ast.walk(tree_of(path)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    names += [node.arg for node in ast.walk(tree_of(path)) if isinstance(node, ast.arg)]
    return names + [node.name for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef)]


def switches() -> dict[str, Any]:
    """Calls from a function of one floor to one of another, in the second step of a run by the demo's recipe.

    A function of the library that torch calls counts as called by the nearest function of the library before it.
    """
    from nestling import demo  # here, since it loads what draws pictures

    torch.manual_seed(0)
    images, labels = torch.randint(256, (256, 1, 32, 32)).to(torch.uint8), torch.randint(8, (256,))
    batches = [torch.utils.data.TensorDataset(images.float(), labels)] * 2
    network = nl.models.build(demo.NETWORK, num_classes=8, in_channels=1, width=demo.NETWORK_WIDTH)
    nested = nl.nest(network, images[:2].float(), num_blocks=demo.NUM_BLOCKS, num_always=demo.NUM_ALWAYS)
    recipe = demo.RECIPE.but(epochs=1, cuts=(1.0,), recalibration_batches=1)
    steps: list[Counter[tuple[str, str]]] = []
    real = loop.Loop._step

    def traced(step: loop.Loop, batch: object) -> tuple[dict[str, float], bool]:
        steps.append(Counter())

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and (here := room_of_frame(frame)) is not None:
                caller = frame.f_back
                while caller is not None and room_of_frame(caller) is None:
                    caller = caller.f_back
                before = None if caller is None else room_of_frame(caller)
                if before is not None and before != here:
                    steps[-1][before, here] += 1

        sys.setprofile(note)
        try:
            return real(step, batch)
        finally:
            sys.setprofile(None)

    with patch.object(loop.Loop, "_step", traced):
        nl.train(nested, tuple(batches), recipe, quiet=True)
    ways = {f"{before} to {after}": number for (before, after), number in steps[1].most_common()}
    return {"switches": sum(ways.values()), "by way": ways}


@cache
def room_of_file(name: str) -> str | None:
    path = Path(name)
    return room_of(path) if path.is_relative_to(SOURCE) else None


def room_of_frame(frame: FrameType) -> str | None:
    return room_of_file(frame.f_code.co_filename)


if __name__ == "__main__":
    main()
