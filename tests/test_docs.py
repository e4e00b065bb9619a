"""The Python of README.md and docs/ runs as it is printed, each file from top to bottom in a folder of its own."""

import importlib
import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import nestling as nl
from nestling import cli, commands

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("releases/*.md"))]
OTHER_TEXTS = [
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md")),
    *sorted((ROOT / "docs").glob("decisions/*.md")),
    *sorted((ROOT / "experiments").glob("*/README.md")),
    *(path for folder in ("src", "benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))),
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ {4}nestling (.*?)(?: {2,}.*)?$", re.MULTILINE)
LINK = re.compile(r"`((?:docs|src|benchmarks|experiments|examples)/[\w./-]+)`|\]\((?!https?:|#)([\w./-]+)\)")

RIDDLES = (
    r"strange (?:data|images?|inputs?|classes)",
    r"strangers?(?:'s)?",
    r"numbers? of noise",
    r"(?:one|two|three|four|eight|number|noise|draws?|tensor|blocks|weight|widths) an? "
    r"(?:step|channel|layer|group|unit|block|batch|weight|pass|image|example|activation|class|pixel)(?! is| has)",
    r"(?:it|network|file) as it came",
    r"says of (?:itself|its own)",
    r"what is known of it",
)
"""Words that a reader has to decode: "strange" for out-of-distribution, "a step" for "per step" and the like."""


def prose(page):
    """The paragraphs and list entries of a page, without code, tables, headings and pictures."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(?: {4}.*|\|.*|#.*|!\[.*)$", "", text, flags=re.MULTILINE)
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n|^ *- ", text, flags=re.MULTILINE) if part.strip()]


def test_the_prose_of_a_page_is_whole_paragraphs_without_code(tmp_path):
    page = tmp_path / "page.md"
    code = "    nestling data\n\n```python\nx = 1\n```\n"
    page.write_text(f"# Title\n\nOne\nline. Two.\n\n{code}\n- entry\n- other\n\n| a |\n![picture](a.png)\n")
    assert prose(page) == ["One line. Two.", "entry", "other"]


@pytest.mark.parametrize("riddle", RIDDLES)
def test_riddles_do_not_come_back(riddle):
    """Neither on a page nor in a docstring, a comment or a message."""
    said = {path: re.search(rf"\b(?:{riddle})\b", words(path), re.IGNORECASE) for path in [*PAGES, *OTHER_TEXTS]}
    assert [f"{path.relative_to(ROOT)}: {found[0]}" for path, found in said.items() if found] == []


def words(path):
    """The text of a file as one line, without the marks of comments."""
    return " ".join(re.sub(r"^\s*#", "", path.read_text(), flags=re.MULTILINE).split())


MOST_WORDS = 35
"""The longest sentence of a page that a user reads."""


def sentences(page):
    return [one for part in prose(page) for one in re.split(r"(?<=[.!?])[*)]*\s+", part)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sentence_of_a_page_is_long(page):
    assert [sentence for sentence in sentences(page) if len(sentence.split()) > MOST_WORDS] == []


def test_there_are_sentences_to_count():
    assert sum(len(sentences(page)) for page in PAGES) > 500


def what_a_reader_has():
    """What stands on no page: the reader's own network, example and data."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
    return {
        "nl": nl,
        "torch": torch,
        "F": F,
        "module": nl.models.build("vgg11", width=0.125),
        "example": inputs[:2],
        "loader": [(inputs, targets)],
        "x": inputs,
        "y": targets,
    }


MADE_BY_THE_SITE = re.compile(r"(?:decisions|reference|experiments/\w+|notebooks/\w+)\.md")
"""Pages that `docs/site_hooks.py` adds; a link to one that it does not add stops `make docs`."""


def leave_what_the_commands_write():
    """The file that the first page exports by a command, of a smaller network on the same data."""
    torch.manual_seed(0)
    data = nl.data.load("cluttered_digits", hold_out=(8, 9))
    module = nl.models.build("mlp", hidden=[8], in_features=1024, num_classes=8)
    nl.export(module, "digits.onnx", torch.zeros(2, 1, 32, 32), data=data, compare=False)


def place_of(name):
    """What a dotted name stands for: a module, or what is in one; AttributeError if there is no such thing."""
    parts = name.split(".")
    inside = [number for number in range(len(parts), 0, -1) if is_module(".".join(parts[:number]))]
    item = importlib.import_module(".".join(parts[: inside[0]]))
    for part in parts[inside[0] :]:
        item = getattr(item, part)
    return item


def is_module(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_the_names_on_the_page_of_the_papers_exist():
    page = (ROOT / "docs" / "papers.md").read_text()
    names = set(re.findall(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)`", page))
    assert len(names) > 25
    for name in names:
        if name.startswith("nestling."):
            place_of(name)
        else:
            rooms = (nl, nl.distributions)
            assert any(hasattr(room, name.partition(".")[0]) for room in rooms), name


def blocks(page):
    """The Python of a page, each block with as many empty lines before it as put it where it stands."""
    text = page.read_text()
    return ["\n" * text[: found.start(1)].count("\n") + found[1] for found in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = what_a_reader_has() if page.name == "nesting.md" else {}
    if page.name == "start.md":
        leave_what_the_commands_write()
    for code in blocks(page):
        exec(compile(code, page.name, "exec"), names)


def test_there_is_something_to_run():
    assert sum(len(blocks(page)) for page in PAGES) >= 8


def test_the_commands_of_the_pages_can_be_parsed(monkeypatch, capsys):
    texts = [re.sub(r" \\\n +", " ", page.read_text()) for page in PAGES]  # a long command goes on in the next line
    lines = [found[1] for text in texts for found in COMMAND.finditer(text)]
    assert len(lines) >= 3
    for name in "train evaluate search extract export predict prune report cascade serve data".split():
        monkeypatch.setattr(commands, name, lambda *_, **__: "parsed")
    monkeypatch.setattr("nestling.demo.demo", lambda *_, **__: "parsed")
    monkeypatch.setattr(sys, "path", sys.path[:])
    for line in lines:
        monkeypatch.setattr(sys, "argv", ["nestling", *shlex.split(line)])
        cli.main()
        assert capsys.readouterr().out == "parsed\n", line


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"], ids=lambda own: own.name)
def test_files_that_a_page_names_are_there(page):
    for found in LINK.finditer(page.read_text()):
        place = found[1] or found[2]
        if MADE_BY_THE_SITE.fullmatch(place):
            continue
        folders = (ROOT, page.parent)
        assert any(list(folder.glob(f"{place.rstrip('/')}*")) for folder in folders), f"{page.name} names {place}"
