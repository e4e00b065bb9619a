"""The data of a run, loaded again from the source that its folder names."""

from nestling import data as sets
from nestling.data import Data
from nestling.errors import RunError
from nestling.training import Run, training_fingerprint


def data_of(run: Run) -> Data:
    """The data that a run was trained on."""
    loaded_with = run.data.get("loaded_with")
    if loaded_with is None:
        raise RunError(run.folder, "was trained on data of yours that no file describes", "Use nl.evaluate.")
    keys = {"source", "validation", "hold_out", "seed"}  # not where data is fetched to, or whether it is verified
    if not isinstance(loaded_with, dict) or loaded_with.keys() != keys or not isinstance(loaded_with["source"], str):
        raise RunError(run.folder, "does not say what data it was trained on", "Restore recipe.json from a copy.")
    loaded = sets.load(**loaded_with)
    if training_fingerprint(loaded) != run.data.get("fingerprint"):
        raise RunError(run.folder, f"was trained on other data than {loaded.name} is now", "Restore the data.")
    return loaded
