"""The rules of the house: imports go down the floors and never round, and every module says what it is."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "nestling"
FLOORS = [
    {"__main__"},
    {"cli"},
    {"commands", "demo"},
    {"report"},
    {"delivery"},
    {"search", "pruning"},
    {"training"},
    {"prediction"},
    {"models", "data"},
    {"network"},
    {"distributions"},
    {"arguments", "processes", "seeding", "tensor_arguments", "version", "writes"},
    {"launch", "lazily"},
    {"errors"},
]
MODULES = sorted(SOURCE.rglob("*.py"))


def floor_of(module: str) -> int:
    """The height of a module, counted from the top; the package itself stands above all."""
    parts = module.split(".")
    if len(parts) == 1:
        return -1
    return next(height for height, rooms in enumerate(FLOORS) if parts[1] in rooms)


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """The modules of nestling that a file imports, with ``from a import b`` resolved to a.b where that is a module."""
    known = {module_name(other) for other in MODULES}
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name if name in known else node.module for name in names]
    return tuple(name for name in found if name in known)


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_only_go_down(path):
    own = module_name(path)
    for target in imports_of(path):
        same_room = own.split(".")[1:2] == target.split(".")[1:2]
        assert same_room or floor_of(target) > floor_of(own), f"{own} imports {target}, which is not below it"


def test_no_import_cycle():
    edges = {module_name(path): set(imports_of(path)) for path in MODULES}
    while edges:
        free = [name for name, targets in edges.items() if not targets & edges.keys() - {name}]
        assert free, f"these import each other in a circle: {sorted(edges)}"
        for name in free:
            del edges[name]


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_module_opens_with_one_sentence(path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, f"{path} has no docstring"
    first = docstring.split("\n\n")[0]
    assert "\n" not in first, f"{path} opens with more than one line"
    assert first.endswith("."), f"{path} does not open with a sentence"
    assert not re.search(r"[.!?] [A-Z]", first), f"{path} opens with more than one sentence"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_no_room_without_a_name(path):
    assert path.stem not in {"utils", "helpers", "misc", "common", "base"}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_architecture_names_every_floor(path):
    room = module_name(path).split(".")[1:2]
    assert not room or room[0] in (ROOT / "ARCHITECTURE.md").read_text()
