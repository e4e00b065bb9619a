"""A user's data: what of it was skipped, and the data of a run, loaded again from the source that its folder names."""

from nestling import data as sets
from nestling.data import Data
from nestling.errors import RunError
from nestling.training import Run, training_fingerprint


def data_of(run: Run) -> Data:
    """The data that a run was trained on."""
    loaded_with = run.data.get("loaded_with")
    if loaded_with is None:
        raise RunError(
            run.folder, "was trained on data, or with a function, of yours that no file describes", "Use nl.evaluate."
        )
    needed, possible = {"source", "validation", "hold_out", "seed"}, {"augment", "resize"}  # no root, verify, download
    keys = loaded_with.keys() if isinstance(loaded_with, dict) else set()
    if not needed <= keys <= needed | possible or not isinstance(loaded_with["source"], str):
        raise RunError(run.folder, "does not say what data it was trained on", "Restore recipe.json from a copy.")
    loaded = sets.load(**loaded_with)
    if training_fingerprint(loaded) != run.data.get("fingerprint"):
        raise RunError(run.folder, f"was trained on other data than {loaded.name} is now", "Restore the data.")
    return loaded


def say_skipped(loaded: Data) -> None:
    """Print how many files of an image folder were not read, if there are any."""
    if loaded.skipped:
        print(f"{loaded.name}: {len(loaded.skipped):,} other files skipped, such as {loaded.skipped[0]}", flush=True)
