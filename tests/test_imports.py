"""What is imported when: the command line's help without torch, and a prediction without what only training needs."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import nestling as nl

SOURCE = Path(nl.__file__).parent
LAZY = sorted(path.parent for path in SOURCE.rglob("__init__.py") if "imports_lazily(" in path.read_text())
COMMANDS = ("demo", "train", "evaluate", "search", "extract", "cascade", "export", "prune", "predict", "report", "data")


def python(code, *words, **options):
    """What a Python of its own prints."""
    run = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, **options)
    assert run.returncode == 0, run.stderr
    return run.stdout


def package_of(folder):
    return importlib.import_module(".".join(folder.relative_to(SOURCE.parent).parts))


HELP = """
import contextlib, io, sys
from nestling import cli
for words in (["--help"], ["--version"], *([own, "--help"] for own in sys.argv[1:])):
    sys.argv = ["nestling", *words]
    shown = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(shown):
        cli.main()
    heavy = {"torch", "numpy", "sklearn", "scipy", "matplotlib"} & sys.modules.keys()
    print(words[0], len(shown.getvalue()) > 4, sorted(heavy))
"""


def test_help_and_version_do_without_torch():
    lines = python(HELP, *COMMANDS).splitlines()
    assert lines == [f"{word} True []" for word in ("--help", "--version", *COMMANDS)]


def test_records_of_options_do_without_torch():
    code = "import sys, nestling as nl; nl.Recipe(), nl.Bits(); from nestling.network import Nesting; Nesting()"
    assert python(f"{code}; print('torch' in sys.modules)") == "False\n"


PREDICT = """
import sys
from pathlib import Path
from nestling import commands
commands.predict(Path("run"), Path("x.npy"), 0.5, 2, 0.8)
print(*sys.modules)
"""
ONLY_FOR_TRAINING = {
    *("sklearn", "scipy", "matplotlib", "torchmetrics", "torch._dynamo", "torch._inductor", "pooch", "filelock"),
    *("nestling.network.discovery", "nestling.reading.trace", "nestling.training.loop", "nestling.pruning.prune"),
}


def test_a_prediction_imports_what_it_needs(tmp_path):
    import numpy as np
    import torch

    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)).reshape(60, 1, 2, 2)
    np.savez(tmp_path / "mine.npz", x=x.numpy(), y=np.arange(60) % 3)
    np.save(tmp_path / "x.npy", x[:2].numpy())
    nested = nl.nest(nl.models.build("mlp", hidden=[6], in_features=4, num_classes=3), x[:2], num_blocks=3)
    recipe = nl.Recipe(epochs=1, batch_size=16, samples=1, cuts=(0.5,))
    nl.train(nested, str(tmp_path / "mine.npz"), recipe, out=tmp_path / "run", quiet=True)
    imported = set(python(PREDICT, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}).split())
    assert "nestling.prediction.predict" in imported
    assert not ONLY_FOR_TRAINING & imported


@pytest.mark.parametrize("folder", LAZY, ids=lambda own: own.name)
def test_the_names_of_a_lazy_package(folder):
    """Those that type checkers see are found, and the public ones are among them."""
    package = package_of(folder)
    (checked,) = (node for node in ast.parse((folder / "__init__.py").read_text()).body if isinstance(node, ast.If))
    homes = {alias.name: own.module for own in checked.body for alias in own.names}
    assert set(getattr(package, "__all__", ())) <= homes.keys() <= set(dir(package))
    for name, where in homes.items():
        found = getattr(package, name)
        home = importlib.import_module(where)
        assert found is (sys.modules[f"{where}.{name}"] if home is package else getattr(home, name))
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        package.nothing_of_this_name  # noqa: B018


def test_there_are_lazy_packages():
    assert SOURCE in LAZY
    assert len(LAZY) > 5


SHADOWS = """
import nestling.network.nest, nestling.search.search, nestling.training.train, nestling.prediction.predict
import nestling
from nestling.network import nest
from nestling.training import train
print(*(callable(own) for own in (nest, train, nestling.search, nestling.predict, nestling.network.nest)))
print(nestling.data.__name__, nestling.models.__name__)
"""


def test_a_function_stays_what_it_is_when_its_module_is_imported():
    assert python(SHADOWS) == "True True True True True\nnestling.data nestling.models\n"


def test_a_lazy_package_takes_other_values(monkeypatch):
    monkeypatch.setattr(nl, "search", 3)
    assert nl.search == 3
    monkeypatch.undo()
    assert callable(nl.search)
    assert not isinstance(nl.search, ModuleType)
