"""What the experiments share: rows as JSON lines, which are not made twice, and Markdown tables of them."""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Commands:
    """The command line of an experiment: ``run``, which gets arguments of its own, and ``table PATH``."""

    def __init__(self, about: str | None, table: Callable[[list[Row]], str]) -> None:
        self._parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._table = table
        commands = self._parser.add_subparsers(required=True, dest="command")
        self.run = commands.add_parser("run")
        self.run.add_argument("--out", type=Path, required=True)
        commands.add_parser("table").add_argument("path", type=Path)

    def asked(self) -> argparse.Namespace | None:
        """What to run; None if it was the table, which is then printed."""
        asked = self._parser.parse_args()
        if asked.command == "run":
            return asked
        print(self._table(read(asked.path)))
        return None


def read(path: Path) -> list[Row]:
    """The rows of a file; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row, and print it."""
    line = json.dumps(row)
    with path.open("a") as file:
        file.write(line + "\n")
    print(line, flush=True)


def made(path: Path, **asked: Any) -> bool:  # noqa: ANN401
    """Whether the file has a row with all these values."""
    wanted = json.loads(json.dumps(asked))  # as JSON has them: a tuple is a list
    return any(all(row.get(key) == value for key, value in wanted.items()) for row in read(path))


def changes(items: Iterable[str]) -> dict[str, Any]:
    """The values of ``name=json``, as the command lines of the experiments take them."""
    return {name: json.loads(value) for name, _, value in (item.partition("=") for item in items)}


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows that are alike in these entries, in the order in which they first occur."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(json.dumps(own) if isinstance(own := row.get(key), dict) else own for key in keys)].append(row)
    return groups


def num_seeds(rows: Iterable[Row]) -> str:
    """``"3 seeds"``, or ``"1 seed"``."""
    number = len({row["seed"] for row in rows})
    return f"{number} seed" if number == 1 else f"{number} seeds"


def spread(values: Sequence[float], digits: int) -> str:
    """The mean, and the standard deviation over seeds where there are several."""
    around = f" ±{statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{around}"


def each(values: Iterable[float], digits: int) -> str:
    """All values, with commas between."""
    return ", ".join(f"{value:.{digits}f}" for value in values)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
