"""Writes the tables of the pages, each by the command that stands beside it; ``check`` names the pages that are stale.

python experiments/pages.py write
python experiments/pages.py check

A table stands between ``<!-- made by: SCRIPT ARGUMENTS -->`` and ``<!-- end -->``, and is what that script prints.
``| grep WORD`` behind the arguments keeps the rows of a table that have the word.
"""

import contextlib
import io
import re
import runpy
import sys
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *ROOT.glob("docs/results.md"), *sorted(ROOT.glob("experiments/*/README.md"))]
MADE = re.compile(
    r"<!-- made by: (?P<command>.*?)(?: \| grep (?P<word>.*?))? -->\n(?P<table>.*?)<!-- end -->", re.DOTALL
)


def printed(command: str) -> str:
    """What a script prints, which runs in this process."""
    script, *arguments = command.split()
    path, out = ROOT / script, io.StringIO()
    given = [str(ROOT / own) if own.endswith(".jsonl") else own for own in arguments]
    with (
        mock.patch.object(sys, "argv", [script, *given]),
        mock.patch.object(sys, "path", [str(path.parent), *sys.path]),
        contextlib.redirect_stdout(out),
    ):
        runpy.run_path(str(path), run_name="__main__")
    return out.getvalue().strip()


def of_word(table: str, word: str | None) -> str:
    """The head of a table, and those of its rows that have the word."""
    lines = table.split("\n")
    return "\n".join(lines[:2] + [line for line in lines[2:] if word is None or word in line])


def written(text: str) -> str:
    """A page with the tables that the rows give today."""

    def made_again(found: re.Match[str]) -> str:
        table = of_word(printed(found["command"]), found["word"])
        return f"{found[0].partition('-->')[0]}-->\n\n{table}\n\n<!-- end -->"

    return MADE.sub(made_again, text)


def main() -> None:
    if sys.argv[1:] not in (["write"], ["check"]):
        sys.exit("usage: python experiments/pages.py write|check")
    stale = {path: text for path in PAGES if (text := written(path.read_text())) != path.read_text()}
    if sys.argv[1] == "write":
        for path, text in stale.items():
            path.write_text(text)
    for path in stale:
        print(("wrote " if sys.argv[1] == "write" else "stale: ") + str(path.relative_to(ROOT)))
    if stale and sys.argv[1] == "check":
        sys.exit("python experiments/pages.py write makes them again.")


if __name__ == "__main__":
    main()
