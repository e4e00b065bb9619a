"""An engine that runs an exported file, with a session for each of its widths."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from nestling.runtime import NORMAL, Network, open
from nestling.service.engine import Engine
from nestling.service.width import Arrays, Calibrated, Width


class FileEngine(Engine):
    """A file that ``export`` wrote: every width of its table, or the only one.

    Each width has a session of its own in which it is fixed, so that it is as fast as a file of that width alone.

    Args:
        path: the file.
        threads: CPU threads per batch; None leaves the choice to the runtime.
        calibrations: the calibrations of widths by name, where the file has none.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        threads: int | None = None,
        calibrations: Mapping[str, Calibrated] | None = None,
    ) -> None:
        whole = open(path, threads=threads)
        self.about, self.platform = whole.about, f"{Path(path).suffix.removeprefix('.')} file"
        rows = sorted((self.about.get("widths") or {}).get("table") or [], key=lambda row: row.get("kept") or 1.0)
        given = dict(calibrations or {})
        if rows:
            self.widths = tuple(_width(row, self.about, given) for row in rows)
            self._networks = [open(path, row["name"], threads=threads) for row in rows]
        else:
            self.widths = (_width(self.about | {"name": self.about.get("name") or "1"}, self.about, given),)
            self._networks = [whole]
        self.mixes = not any(port.get("fill") == NORMAL for port in self.about["inputs"])

    def run(self, width: int, inputs: Arrays) -> dict[str, np.ndarray]:
        """The outputs by name at the width with this number."""
        network: Network = self._networks[width]
        return dict(network.predict(inputs).outputs)


def _width(row: Mapping[str, Any], about: Mapping[str, Any], given: Mapping[str, Calibrated]) -> Width:
    """A width from its row of the table; what the file says of its probabilities goes for all of its widths."""
    in_file = {float(coverage): value for coverage, value in (about.get("thresholds") or {}).items()}
    calibrated = given.get(str(row["name"]), Calibrated(1.0, in_file))
    return Width(str(row["name"]), row.get("kept") or 1.0, calibrated, row.get("cut"))
