"""The rules of the house: imports go down the floors and never round, and every module says what it is."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import fx, nn

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "nestling"
FLOORS = [
    {"__main__"},
    {"cli"},
    {"commands", "demo"},
    {"report"},
    {"service"},
    {"delivery"},
    {"cascade"},
    {"search", "pruning"},
    {"budgets"},
    {"training"},
    {"storage"},
    {"generation"},
    {"prediction"},
    {"models", "data"},
    {"network"},
    {"running"},
    {"reading"},
    {"distributions"},
    {"runtime"},
    {"arguments", "kept_until_written", "processes", "seeding", "tables", "tensor_arguments", "version"},
    {"markup"},
    {"errors", "launch", "lazily", "torch_parts"},
]
MODULES = sorted(SOURCE.rglob("*.py"))
TORCH_PARTS = SOURCE / "torch_parts.py"


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


def names_from(path: Path) -> set[str]:
    """What a file imports of nestling: ``from a import b`` as a.b."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    inside = [node for node in nodes if node.module.split(".")[0] == "nestling"]
    return {f"{node.module}.{alias.name}" for node in inside for alias in node.names}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_only_go_down(path):
    own = module_name(path)
    for target in imports_of(path):
        same_room = own.split(".")[1:2] == target.split(".")[1:2]
        assert same_room or floor_of(target) > floor_of(own), f"{own} imports {target}, which is not below it"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_rooms_are_entered_by_their_door(path):
    """An import from another room names a package, not one of its files."""
    packages = {module_name(other) for other in MODULES if other.name == "__init__.py"}
    rooms = {name.rpartition(".")[0] for name in names_from(path)}
    across = {name for name in rooms if name.split(".")[1:2] != module_name(path).split(".")[1:2]}
    assert {name for name in across - packages if name.count(".") > 1} == set()


def test_doors_have_what_others_ask_for():
    """A name at the door of a room is public, or another room imports it there."""
    names = {path: names_from(path) for path in MODULES}
    asked = {name for path, found in names.items() if path.name != "__init__.py" for name in found}
    asked |= {name for path, found in names.items() for name in found if not name.startswith(module_name(path))}
    for path in MODULES:
        if "imports_lazily(" in path.read_text():
            package = importlib.import_module(module_name(path))
            idle = {name.rpartition(".")[2] for name in names[path]} - set(getattr(package, "__all__", ()))
            assert {name for name in idle if f"{module_name(path)}.{name}" not in asked} <= {
                "__version__",
                "imports_lazily",
            }


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
def test_files_and_functions_are_short(path):
    """A file has at most 400 lines, and a function 50 beside its signature and docstring."""
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    bodies = [(node.name, node.body[1:] if ast.get_docstring(node) else node.body) for node in functions]
    assert [name for name, body in bodies if body and body[-1].end_lineno - body[0].lineno >= 50] == []


ARCHITECTURE = ROOT / "ARCHITECTURE.md"
FILES = "## Every file\n"


def lines_of_files() -> str:
    """Each file with the sentence that it opens with, room by room."""
    rooms = [*(room for rooms in FLOORS for room in sorted(rooms) if (SOURCE / room).is_dir()), ""]
    lines = []
    for room in rooms:
        found = sorted((SOURCE / room).rglob("*.py") if room else SOURCE.glob("*.py"))
        lines += ["", f"### {room}/" if room else "### beside the rooms", ""]
        for path in (path for path in found if path.name != "__init__.py"):
            opens = ast.get_docstring(ast.parse(path.read_text())).split("\n\n")[0]
            lines.append(f"- `{path.relative_to(SOURCE / room)}`: {opens}")
    return "\n".join(lines) + "\n"


def test_architecture_has_a_line_for_every_file():
    said = f"run python {Path(__file__).name}, which writes them"
    assert ARCHITECTURE.read_text().partition(FILES)[2] == lines_of_files(), said


def test_architecture_speaks_of_every_room():
    text = ARCHITECTURE.read_text().partition(FILES)[0]
    assert [room for rooms in FLOORS for room in rooms if f"{room}" not in text.partition("### ")[0]] == []


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


@cache
def private_names_of_torch() -> frozenset[str]:
    """What the objects that the library handles have under a private name, hooks that a subclass may replace too."""
    adam = torch.optim.AdamW([torch.zeros(1)])
    norm, plain, transposed = nn.BatchNorm2d(1), nn.Conv2d(1, 1, 1), nn.ConvTranspose2d(1, 1, 1)
    graph = fx.symbolic_trace(nn.Sequential(plain))
    operation, node = torch.ops.aten.add.Tensor, next(iter(graph.graph.nodes))
    things = (norm, plain, transposed, adam, graph, graph.graph, node, operation)
    return frozenset(name for thing in things for name in (*dir(thing), *vars(type(thing))) if is_private(name))


def private_parts_of_torch(path: Path) -> list[str]:
    """The lines of a file that import, read, override or spell a private part of torch, or an experimental one."""
    tree = ast.parse(path.read_text())
    members = [node for part in ast.walk(tree) if isinstance(part, ast.ClassDef) for node in part.body]
    methods = [node for node in members if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    own = {node.name for node in methods} | {node.target.id for node in members if isinstance(node, ast.AnnAssign)}
    own |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    own -= private_names_of_torch()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names = [module + alias.name for alias in node.names]
            odd = [n for n in names if n.startswith("torch.") and re.search(r"\._|\.experimental\b", n)]
        elif isinstance(node, ast.Attribute):
            odd = [node.attr] if is_private(node.attr) and node.attr not in own and node.attr != "_replace" else []
        elif node in methods:
            odd = [node.name] if node.name in private_names_of_torch() else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            odd = [word for word in node.value.split() if word in private_names_of_torch()]
        else:
            odd = []
        found += [f"{path.name}:{node.lineno}: {name}" for name in odd]
    return found


@pytest.mark.parametrize("path", [path for path in MODULES if path != TORCH_PARTS], ids=module_name)
def test_private_parts_of_torch_are_used_in_one_file(path):
    assert private_parts_of_torch(path) == []


@pytest.mark.parametrize(
    "line",
    [
        "from torch.utils import _pytree",
        "import torch._dynamo",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "torch._C",
        "tensor._version",
        "module._parameters",
        "class A(nn.Module):\n    def _apply(self, fn): ...",
        "getattr(module, '_forward_hooks')",
        "module._non_persistent_buffers_set = set()",
    ],
)
def test_private_parts_of_torch_are_found(line, tmp_path):
    (tmp_path / "module.py").write_text(line)
    assert len(private_parts_of_torch(tmp_path / "module.py")) == 1


def test_every_private_part_of_torch_has_its_reason():
    """A docstring, or a comment beside a name that is only passed on."""
    tree = ast.parse(TORCH_PARTS.read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert all(ast.get_docstring(node) for node in functions)
    passed_on = re.search(r"__all__ = \[\n(.*?)\]", TORCH_PARTS.read_text(), re.DOTALL)[1].splitlines()
    assert [line for line in passed_on if "#" not in line and "ConvTransposeNd" not in line] == []


POSTERIOR_NAMES = {"log_alpha", "log_sigma2", "prior_std", "scale_name"}
THEIR_HOMES = (SOURCE / "distributions", SOURCE / "running" / "layers" / "layer.py")


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_only_posteriors_spell_the_names_of_their_tensors(path):
    """Not as an attribute, and not in a string, but for docstrings."""
    if any(path.is_relative_to(home) for home in THEIR_HOMES):
        return
    nodes = list(ast.walk(ast.parse(path.read_text())))
    said = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in said]
    spelled = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & POSTERIOR_NAMES
    spelled |= {text for text in strings if "posterior." in text or any(name in text for name in POSTERIOR_NAMES)}
    assert not spelled


if __name__ == "__main__":
    ARCHITECTURE.write_text(ARCHITECTURE.read_text().partition(FILES)[0] + FILES + lines_of_files())
