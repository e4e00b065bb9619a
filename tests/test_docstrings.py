"""The docstrings of public names: what they say of arguments and results, that their examples run, and how many."""

import ast
import doctest
import importlib
import inspect
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from nestling import NestlingError

ROOT = Path(__file__).parent.parent
BEFORE = ROOT / "docs" / "before_examples.py"
"""The lines that the reference puts before all examples."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public_items():
    """The functions and classes of the snapshot with where they are defined, each once."""
    names = [line.partition("(")[0].split(".") for line in (ROOT / "tests" / "public_api.txt").read_text().splitlines()]
    doors = {f"{room}.{name}": (room, name) for room, name in ((".".join(n[:-1]), n[-1]) for n in names if len(n) < 4)}
    items = {}
    for room, name in doors.values():
        if room.count(".") < 2:
            item = getattr(importlib.import_module(room), name)
            if inspect.isclass(item) or inspect.isfunction(item):
                items[f"{item.__module__}.{item.__qualname__}"] = item
    return items


ITEMS = public_items()
SHORT = [name.removeprefix("nestling.") for name in ITEMS]


def test_there_are_names():
    assert len(ITEMS) > 150


def parameters_of(item):
    """The names that a caller can pass, of an error none: users catch errors, and do not make them."""
    if inspect.isclass(item) and (issubclass(item, NestlingError) or inspect.isabstract(item)):
        return set()
    found = inspect.signature(item).parameters.values()
    return {own.name for own in found if own.kind not in (own.VAR_KEYWORD, own.VAR_POSITIONAL)} - {"self"}


def section(text, title):
    """The lines of a section of a docstring, without the spaces before them."""
    lines = text.splitlines()
    if f"{title}:" not in lines:
        return []
    start = lines.index(f"{title}:") + 1
    inside = lines[start:]
    end = next((number for number, line in enumerate(inside) if line and not line.startswith(" ")), len(inside))
    return inside[:end]


def described(text):
    """The names that the sections about arguments and attributes explain."""
    lines = [*section(text, "Args"), *section(text, "Attributes")]
    entries = [line[4:].partition(":")[0] for line in lines if line.startswith("    ") and line[4:5].strip()]
    return {name.strip() for entry in entries for name in entry.split(",")}


def described_beside(item):
    """The fields of a class that have a string under them, as those of options do."""
    body = ast.parse(inspect.getsource(item)).body[0].body if inspect.isclass(item) else []
    pairs = pairwise(body)
    return {
        node.target.id
        for node, after in pairs
        if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }


def inherited(item):
    """What the classes before it explain."""
    return {name for kind in inspect.getmro(item)[1:] for name in described(inspect.getdoc(kind) or "")}


@pytest.mark.parametrize("name", ITEMS, ids=SHORT)
def test_a_docstring_explains_what_goes_in_and_comes_out(name):
    item = ITEMS[name]
    text = inspect.getdoc(item) or ""
    known = described(text) | described_beside(item)
    if inspect.isclass(item):
        known |= inherited(item)
        if "__init__" in vars(item):
            known |= described(inspect.getdoc(item.__init__) or "")
    assert parameters_of(item) - known == set()
    if inspect.isfunction(item):
        result = inspect.signature(item).return_annotation
        assert bool(section(text, "Returns")) == (result not in (None, "None"))
        raises = [node for node in ast.walk(ast.parse(inspect.getsource(item))) if isinstance(node, ast.Raise)]
        assert not raises or section(text, "Raises")
    assert any(">>> " in line for line in section(text, "Examples")), "the site shows examples under this title"


def modules_with_examples():
    source = ROOT / "src"
    paths = [path for path in sorted(source.rglob("*.py")) if ">>> " in path.read_text()]
    parts = [path.relative_to(source).with_suffix("").parts for path in paths]
    return [importlib.import_module(".".join(own).removesuffix(".__init__")) for own in parts]


def test_the_examples_run(tmp_path, monkeypatch):
    """Those of public names and of all others; one test, since they share a network that is trained first."""
    pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    names, said = {}, []
    exec(compile(BEFORE.read_text(), str(BEFORE), "exec"), names)
    for module in modules_with_examples():
        for test in doctest.DocTestFinder().find(module, globs=names):
            doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert not said, "".join(said)


LEAST_SHARE = 0.2
"""The share of lines that docstrings have in the files that define public names, of each room by itself."""


def num_docstring_lines(path):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    said = [node.body[0] for node in nodes if ast.get_docstring(node) is not None]
    return sum(node.end_lineno - node.lineno + 1 for node in said)


def files_by_room():
    files = {}
    for item in ITEMS.values():
        room = item.__module__.split(".")[1]
        files.setdefault(room, set()).add(Path(sys.modules[item.__module__].__file__))
    return files


@pytest.mark.parametrize("room", files_by_room())
def test_a_fifth_of_the_lines_are_docstrings(room):
    paths = files_by_room()[room]
    said, lines = (sum(map(count, paths)) for count in (num_docstring_lines, num_lines))
    assert said >= LEAST_SHARE * lines, f"{room}: {said / lines:.1%}"


def test_a_fifth_of_the_lines_of_public_rooms_are_docstrings():
    """Of all their files together, those of helpers too."""
    rooms = {
        room for room in files_by_room() if (ROOT / "docs" / "site_hooks.py").read_text().count(f'"nestling.{room}"')
    }
    paths = [path for room in rooms for path in (ROOT / "src" / "nestling" / room).rglob("*.py")]
    assert len(rooms) > 10
    assert sum(map(num_docstring_lines, paths)) >= LEAST_SHARE * sum(map(num_lines, paths))


def num_lines(path):
    return len(path.read_text().splitlines())
