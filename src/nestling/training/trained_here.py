"""Notes which runs this user trained on this machine, so that only the runs of others must be trusted to name data.

A run folder says on which data it was trained, and somebody's could name any file. A note is an empty file, named by
the checksum of the run's data, recipe and network, under the user's folder for such things ($XDG_STATE_HOME).
"""

import os
from contextlib import suppress
from pathlib import Path

from nestling.storage import read_json
from nestling.training.run import RECIPE_FILE, identity_of


def note(identity: str) -> None:
    """Note that a run is trained here; where no note can be written, the run has to be trusted like any other."""
    with suppress(OSError, RuntimeError):
        place = _place(identity)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


def was_trained_here(folder: Path) -> bool:
    """Whether there is a note for the run in a folder."""
    with suppress(OSError, RuntimeError):
        return _place(identity_of(read_json(folder / RECIPE_FILE))).exists()
    return False


def _place(identity: str) -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "nestling" / "runs" / identity
