"""Pages of the site that are made from other files: the reference, the decisions and the experiments."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
ROOMS = {
    "nestling": "What most programs need: `import nestling as nl`.",
    "nestling.data": "Data sets by name, path or `Dataset`.",
    "nestling.distributions": "Orders, weight posteriors, gates and divergences, as pure mathematics.",
    "nestling.models": "The papers' networks.",
    "nestling.network": "Groups, cuts, costs and extraction.",
    "nestling.generation": "Texts from a network that predicts the next token.",
    "nestling.prediction": "Likelihoods, predictions, scores and calibration.",
    "nestling.search": "Budgets, costs, strategies and the curve.",
    "nestling.pruning": "Bayesian dropout.",
    "nestling.training": "The objective, the recipe and runs.",
    "nestling.cascade": "Cuts one after another: the narrowest answers first.",
    "nestling.delivery": "Networks in files that run without nestling.",
    "nestling.runtime": "Exported files, opened without torch.",
    "nestling.service": "A network at several widths behind HTTP.",
    "nestling.report": "Tables and pictures of a run.",
}
"""The packages of the reference, each with the sentence that its page opens with."""
_ELSEWHERE = re.compile(r"\]\((?:\.\./)+(experiments|docs)/([^)]*)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that no file of ``docs/`` has."""
    experiments = {f"experiments/{path.parent.name}.md": path for path in sorted(ROOT.glob("experiments/*/README.md"))}
    pages = {name: path.read_text() for name, path in experiments.items()}
    pages |= _reference()
    rooms = {f"reference/{room}.md": f"`{room}`: {about}" for room, about in ROOMS.items()}
    pages["reference.md"] = _index("Reference", rooms) + _before_examples()
    pages |= {f"notebooks/{path.stem}.md": _notebook(path) for path in sorted(ROOT.glob("docs/notebooks/*.ipynb"))}
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    pages["decisions.md"] = _index("Decisions", {f"decisions/{path.name}": _title(path) for path in decisions})
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:  # noqa: ANN401
    """Point links between ``docs/`` and ``experiments/`` at the pages of the site."""
    up = "../" * page.file.src_uri.count("/")

    def link(found: re.Match[str]) -> str:
        room, place = found[1], found[2]
        inside = f"experiments/{Path(place).parent.name}.md" if room == "experiments" else place
        return f"]({up}{inside})"

    return _ELSEWHERE.sub(link, markdown)


def _reference() -> dict[str, str]:
    """A page per package, with each public name on the first page that has it."""
    pages, homes = {}, set[str]()
    for room, about in ROOMS.items():
        package = importlib.import_module(room)
        names = {
            name: _home(package, name) for name in package.__all__ if not hasattr(getattr(package, name), "__path__")
        }
        entries = "\n\n".join(f"::: {home}" for home in names.values() if home not in homes)
        homes.update(names.values())
        pages[f"reference/{room}.md"] = f"# {room}\n\n{about}\n\n{entries}\n"
    return pages


def _before_examples() -> str:
    """What stands before each example, as the tests run it."""
    code = (ROOT / "docs" / "before_examples.py").read_text().partition("\n\n")[2]
    about = "Every example of these pages runs in the tests, after these lines, which take a few seconds:"
    return f"\n## Before the examples\n\n{about}\n\n```python\n{code}```\n"


def _home(package: Any, name: str) -> str:  # noqa: ANN401
    """Where a public name is defined, since packages import their names when they are first used."""
    home = str(getattr(getattr(package, name), "__module__", ""))
    return f"{home}.{name}" if home.startswith("nestling") else f"{package.__name__}.{name}"


def _notebook(path: Path) -> str:
    """A notebook as a page: its text, its code, and what each cell showed when it was run."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else _fenced("python", text))
        parts += [_output(output) for output in cell.get("outputs", [])]
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title}\n\n[Download this notebook]({path.name}){{ download }}\n{rest}\n"


def _output(output: dict[str, Any]) -> str:
    """What a cell showed, in the richest form that a page can have."""
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="shown">{"".join(data["text/html"])}</div>'
    if "image/png" in data:
        code = "".join(data["image/png"].split())
        return (
            f'<div class="shown"><img alt="the picture that this code draws" src="data:image/png;base64,{code}"></div>'
        )
    return _fenced("text", "".join(output.get("text", data.get("text/plain", ""))))


def _fenced(language: str, text: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"


def _index(title: str, entries: dict[str, str]) -> str:
    lines = "\n".join(f"- [{text}]({place})" for place, text in entries.items())
    return f"# {title}\n\n{lines}\n"


def _title(path: Path) -> str:
    return path.read_text().split("\n", 1)[0].removeprefix("# ")
