"""Sparse VD and VBD on the weights of the two LeNets, on MNIST: one JSON line a run, then the table.

NESTLING_DATA=folder python experiments/sparse_vd/weights.py run sparse_vd lenet_300_100 0 --out results.jsonl
python experiments/sparse_vd/weights.py table results.jsonl
"""

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import nestling as nl
from nestling.pruning import prune, save_pruned

sys.path.append(str(Path(__file__).parents[1]))
from rows import Commands, Row, add, each, grouped, markdown, spread

PAPERS = {
    ("lenet_300_100", "sparse_vd"): "1.92 %, 68 times, 98.9-97.2-62.0 %",
    ("lenet_300_100", "vbd"): "1.76 %, 81 times, 98.9-98.1-90.9 %",
    ("lenet_5_caffe", "sparse_vd"): "0.75 %, 280 times, 67-98-99.8-95 %",
    ("lenet_5_caffe", "vbd"): "0.81 %, 290 times, 65-98-99.8-97 %",
}


def recipe(seed: int, **changes: Any) -> nl.Recipe:  # noqa: ANN401
    """Larger batches and learning rates than the papers': they get further in the same time."""
    own = nl.Recipe(epochs=150, batch_size=1000, seed=seed, lr=1e-2, order_lr=1e-2, lr_warm_up=0.0)
    return own.but(kappa=1.0, kl_warm_up=0.1).but(**changes)


def pretraining(pruning: nl.Recipe, epochs: int) -> nl.Recipe:
    plain = nl.Recipe(epochs=epochs, batch_size=500, lr=3e-3, lr_warm_up=0.0)
    return plain.but(seed=pruning.seed, precision=pruning.precision)


def finishing(pruning: nl.Recipe, epochs: int, batch_size: int) -> nl.Recipe:
    return pruning.but(epochs=epochs, batch_size=batch_size, lr=float(pruning.lr) / 3, kl_warm_up=0.0)


def tuning(pruning: nl.Recipe, epochs: int) -> nl.Recipe:
    return nl.Recipe(epochs=epochs, batch_size=250, lr=1e-3, lr_warm_up=0.0, keep="last", seed=pruning.seed)


def run(
    method: Any,  # noqa: ANN401
    network: str,
    seed: int,
    pretrain: int,
    threshold: float,
    finish: int,
    finish_batch_size: int,
    tune: int,
    folder: Path | None,
    **changes: Any,  # noqa: ANN401
) -> dict[str, Any]:
    torch.manual_seed(seed)
    data = nl.data.load("mnist", seed=seed, validation=2000)
    data = replace(data, mean=(0.0,), std=(1.0,))  # pixels in [0, 1], as the papers have
    chosen = recipe(seed, **changes)
    started = time.process_time()
    module = nl.models.build(network)
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    pruned = prune(
        module,
        torch.zeros(2, 1, 28, 28),
        data,
        method,
        structure="weights",
        recipe=chosen,
        pretrain=pretraining(chosen, pretrain) if pretrain else False,
        finish=finishing(chosen, finish, finish_batch_size) if finish else False,
        tune=tuning(chosen, tune) if tune else False,
        threshold=threshold,
        out=folder,
    )
    test = list(data.batches("test", 1000))
    validated = nl.evaluate(pruned.network, list(data.batches("validation", 1000)), samples=0)
    certain = nl.evaluate(pruned.network, test, samples=0)
    assert pruned.uncertain is not None
    drawn = nl.evaluate(pruned.uncertain, test, samples=6)
    place = Path(f"/tmp/nestling-{method}-{network}-{seed}.safetensors")
    size = save_pruned(pruned.network, place)
    place.unlink()
    return {
        "method": method,
        "network": network,
        "seed": seed,
        "error": error(certain),
        "validation_error": error(validated),
        "validation_nll": float(validated.nll),
        "error_of_samples": error(drawn),
        "compression": pruned.compression,
        "sparsity": [100 * own.sparsity for own in pruned.layers],
        "kept": [own.kept for own in pruned.layers],
        "shapes": [list(p.shape) for p in pruned.network.parameters() if p.ndim > 1],
        "bytes": size,
        "bytes_before": pruned.before.bytes,
        "epochs": chosen.epochs,
        "pretrain": pretrain,
        "threshold": threshold,
        "finish": finish,
        "finish_batch_size": finish_batch_size,
        "tune": tune,
        "changes": changes,
        "cpu_seconds": round(time.process_time() - started),
    }


def error(scores: Any) -> float:  # noqa: ANN401
    """Per cent of test examples that are wrong."""
    return 100 * (1 - float(scores.accuracy))


def table(rows: list[Row]) -> str:
    """Means over the seeds beside the papers' rows; ratio is all weights over kept weights, no biases."""
    lines = []
    described = [row | {"training": _training(row)} for row in rows]
    keys = ("network", "method", "threshold", "training")
    for (network, method, threshold, epochs), own in grouped(described, *keys).items():
        errors, ratios = [row["error"] for row in own], [row["compression"] for row in own]
        layers = "-".join(f"{statistics.mean(c):.1f}" for c in zip(*(row["sparsity"] for row in own), strict=True))
        size = f"{statistics.mean(row['bytes'] for row in own):.0f} of {own[0]['bytes_before']}"
        error = f"{spread(errors, 2)} ({each(errors, 2)})"
        about = [f"{network}, {method}", PAPERS[network, method], f"{threshold:g}, {epochs}"]
        lines.append([*about, error, each(ratios, 0), layers, size])
    head = ["network, method", "paper: error, times smaller, sparsity per layer", "threshold, epochs"]
    return markdown(
        [*head, "error %, mean (each)", "times smaller", "sparsity per layer %", "bytes in the file"], lines
    )


def _training(row: Row) -> str:
    tuned = f" + {row['tune']} tuned" if row.get("tune") else ""
    return f"{row['epochs']} + {row['finish']} in batches of {row['finish_batch_size']}{tuned}"


def main() -> None:
    commands = Commands(__doc__, table)
    commands.run.add_argument("method", choices=("sparse_vd", "vbd"))
    commands.run.add_argument("network", choices=("lenet_300_100", "lenet_5_caffe"))
    commands.run.add_argument("seed", type=int)
    commands.run.add_argument("--pretrain", type=int, default=3, help="epochs of plain training before")
    commands.run.add_argument("--threshold", type=float, default=0.5, help="on log alpha; the papers have 3")
    commands.run.add_argument("--finish", type=int, default=25, help="epochs with what is left; 0 as the papers: stop")
    commands.run.add_argument("--finish-batch-size", type=int, default=1000)
    commands.run.add_argument("--tune", type=int, default=0, help="epochs of the plain network that is left")
    commands.run.add_argument("--folder", type=Path, help="keep the stages here, to go on or to try another threshold")
    for name, kind in (("epochs", int), ("lr", float), ("order_lr", float), ("kl_warm_up", float), ("batch_size", int)):
        commands.run.add_argument(f"--{name.replace('_', '-')}", type=kind, dest=name)
    commands.run.add_argument("--precision", choices=("float32", "bfloat16"), help="of training; the result is float32")
    asked = commands.asked()
    if asked is None:
        return
    torch.set_num_threads(1)
    given = {name: value for name, value in vars(asked).items() if name != "command"}
    out = given.pop("out")
    positional = [
        given.pop(name)
        for name in (
            "method",
            "network",
            "seed",
            "pretrain",
            "threshold",
            "finish",
            "finish_batch_size",
            "tune",
            "folder",
        )
    ]
    add(out, run(*positional, **{name: value for name, value in given.items() if value is not None}))


if __name__ == "__main__":
    main()
