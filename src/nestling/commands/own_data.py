"""A user's data: what of it was skipped; the data of a run, loaded again from where its folder says; other data."""

from pathlib import Path

from nestling import data as sets
from nestling.commands.options import BATCH
from nestling.data import Batches, Data
from nestling.errors import RangeError, RunError, printable
from nestling.training import Run, training_fingerprint, was_trained_here


def data_of(run: Run, *, trust: bool) -> Data:
    """The data that a run was trained on; the path that a run names is read if it is the user's own run or trusted."""
    loaded_with = run.data.get("loaded_with")
    if loaded_with is None:
        raise RunError(
            run.folder, "was trained on data, or with a function, of yours that no file describes", "Use nl.evaluate."
        )
    needed, possible = {"source", "validation", "hold_out", "seed"}, {"augment", "resize"}  # no root, verify, download
    keys = loaded_with.keys() if isinstance(loaded_with, dict) else set()
    if not needed <= keys <= needed | possible or not isinstance(loaded_with["source"], str):
        raise RunError(run.folder, "does not say what data it was trained on", "Restore recipe.json from a copy.")
    source = loaded_with["source"]
    if source not in sets.names() and not trust and run.folder is not None and not was_trained_here(run.folder):
        problem = f"was not trained by you on this machine, and asks to read {source}"
        raise RunError(run.folder, problem, "If you know the run, allow it with --trust.")
    loaded = sets.load(**loaded_with)
    if training_fingerprint(loaded) != run.data.get("fingerprint"):
        raise RunError(run.folder, f"was trained on other data than {loaded.name} is now", "Restore the data.")
    return loaded


def say_skipped(loaded: Data) -> None:
    """Print how many files of an image folder were not read, if there are any."""
    if loaded.skipped:
        count, example = len(loaded.skipped), loaded.skipped[0]
        print(printable(f"{loaded.name}: {count:,} other files skipped, such as {example}"), flush=True)


def out_of_distribution(loaded: Data, ood: str | None, limit: int | None) -> Batches | None:
    """Batches of out-of-distribution data: a data set, or the classes that were held out."""
    if ood is None:
        return None if loaded.held_out is None else loaded.batches("held_out", BATCH, limit=limit)
    resize = (loaded.loaded_with or {}).get("resize") if Path(ood).is_dir() and ood not in sets.names() else None
    other = sets.load(ood, splits=("test",), resize=resize).normalised_like(loaded)
    if other.input_shape != loaded.input_shape:
        given, needed = f"{ood} with inputs {other.input_shape}", f"data with inputs {loaded.input_shape}"
        raise RangeError("ood", given, needed, "Choose a set of the same kind.")
    return other.batches("test", BATCH, limit=limit)
