"""An engine that runs an exported file, with a session for each of its widths."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from nestling.runtime import NORMAL, open
from nestling.service.engine import Engine
from nestling.service.width import Arrays, Calibrated, Width


class FileEngine(Engine):
    """A file that ``export`` wrote: every width of its table, or the only one.

    Each width has a session of its own in which it is fixed, so that it is as fast as a file of that width alone.

    Args:
        path: the file; its suffix says which runtime opens it.
        threads: CPU threads per batch; None leaves the choice to the runtime.

    Raises:
        ArgumentError: if there is no runtime for such a file.
        RunError: if the file is not there, is damaged, or is not one of nestling's.

    Examples:
        >>> from nestling.service import FileEngine
        >>> engine = FileEngine("digits.onnx", threads=1)
        >>> [width.name for width in engine.widths], sorted(engine.outputs)
        (['0.5'], ['entropy', ..., 'logits', 'probs'])
    """

    def __init__(self, path: str | PathLike[str], *, threads: int | None = None) -> None:
        whole = open(path, threads=threads)
        self.about, self.platform = whole.about, f"{Path(path).suffix.removeprefix('.')} file"
        rows = sorted((self.about.get("widths") or {}).get("table") or [], key=lambda row: row.get("kept") or 1.0)
        self._networks = [open(path, row["name"], threads=threads) for row in rows] or [whole]
        self.widths = tuple(_width({**self.about, **row}) for row in rows or [{}])
        self.mixes = not any(port.get("fill") == NORMAL for port in self.about["inputs"])

    def run(self, width: int, inputs: Arrays) -> dict[str, np.ndarray]:
        """The outputs by name at the width with this number."""
        return dict(self._networks[width].predict(inputs).outputs)


def _width(row: Mapping[str, Any]) -> Width:
    """A width from its row of the table, over what the file says of all; its temperature is in the file."""
    thresholds = {float(coverage): value for coverage, value in (row.get("thresholds") or {}).items()}
    return Width(str(row.get("name") or "1"), row.get("kept") or 1.0, Calibrated(1.0, thresholds), row.get("cut"))
