"""A pretrained sentence transformer, nested and fine-tuned on SST-2: what each width keeps, and how sure it is.

NESTLING_DATA=folder python experiments/transformers/sentences.py run model plain nested --seeds 0 --out sentences.jsonl
python experiments/transformers/sentences.py table sentences.jsonl

``model`` is the folder of a pretrained network of Hugging Face's, such as MiniLM-L6. Heads and feed-forward units are
sorted by norm, in four blocks each, of which the first is never cut; word embeddings stay as they are. It learns 6,000
of SST-2's training phrases in bfloat16, in batches of about one length; another 600 are for validation, and the 872
development sentences are the test. AG News is out of distribution. Each method has as many epochs as take about the CPU
time of two of the plain one. Row by row, the temperature is that of the validation phrases.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import nestling as nl
from nestling.data import Split
from nestling.prediction import ClassScores

CUTS = (0.25, 0.5, 0.75, 1.0)
EXAMPLES, VALIDATION, FOREIGN = 6000, 600, 300
LENGTH, DRAWS, BATCH, POOL = 64, 4, 32, 50
"""Tokens of a text; draws of the weights; examples of a batch; batches whose examples are sorted by their length."""
SHOWN = ("accuracy", "nll", "ece", "ece_raw", "auroc")


@dataclass(frozen=True)
class Method:
    """How the network is nested, what of the recipe is changed, and its epochs.

    With ``first`` epochs the plain network is fine-tuned before it is nested, and is its teacher then.
    """

    epochs: int
    nesting: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    first: int = 0


PLAIN: dict[str, Any] = {"weights": None}
FINE_TUNED = Method(2, PLAIN | {"order": "full"}, {"cuts": (1.0,)})
# MatFormer's recipe: one of the fixed sizes in each step, by chance
MATFORMER = Method(3, PLAIN | {"order": "uniform"}, {"objective": "elbo", "coupled": 1.0, "draws": 1})
METHODS = {
    "plain": FINE_TUNED,
    "nested": Method(1, PLAIN),
    "nested_bayesian": Method(1, {"weights": "ivon"}),
    "matformer": MATFORMER,
    # about three times as long
    "plain_longer": replace(FINE_TUNED, epochs=6),
    "nested_longer": Method(3, PLAIN),
    "taught_longer": Method(2, PLAIN, {"soften": 1.0}, first=2),
    "matformer_longer": replace(MATFORMER, epochs=6),
}


class ByLength(Sampler[int]):
    """The examples in random order, with those of a batch of about one length, so that there is little padding."""

    def __init__(self, split: Split) -> None:
        self.lengths = split.inputs["attention_mask"].sum(1)

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        pools = torch.split(torch.randperm(len(self)), BATCH * POOL)
        batches = [batch for pool in pools for batch in torch.split(pool[self.lengths[pool].argsort()], BATCH)]
        whole = [batch for batch in batches if len(batch) == BATCH]
        for number in torch.randperm(len(whole)).tolist():
            yield from whole[number][torch.randperm(BATCH)].tolist()


def loader(split: Split, *, shuffle: bool = False) -> "DataLoader[Any]":
    """Batches of a split, each padded to its longest text; without shuffling from the shortest text to the longest."""

    def collate(rows: list[int]) -> tuple[dict[str, Tensor], Tensor]:
        chosen = split.subset(torch.tensor(rows))
        longest = int(chosen.inputs["attention_mask"].sum(1).max())
        return {name: tensor[:, :longest] for name, tensor in chosen.inputs.items()}, chosen.targets

    if shuffle:
        return DataLoader(range(len(split)), BATCH, sampler=ByLength(split), collate_fn=collate, drop_last=True)  # type: ignore[arg-type]
    ordered = split.inputs["attention_mask"].sum(1).argsort(stable=True).tolist()
    return DataLoader(ordered, 2 * BATCH, collate_fn=collate)


@cache
def loaders(model: Path) -> dict[str, "DataLoader[Any]"]:
    """The fixed subset, which does not depend on the seed."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    data = nl.data.load("sst2", tokenizer=tokenizer, max_length=LENGTH, validation=VALIDATION, seed=0)
    foreign = nl.data.load("ag_news", tokenizer=tokenizer, max_length=LENGTH, splits=("test",))
    return {
        "train": loader(data.split("train").drawn(EXAMPLES), shuffle=True),
        "validation": loader(data.split("validation")),
        "test": loader(data.split("test")),
        "foreign": loader(foreign.split("test").drawn(FOREIGN)),
    }


def pretrained(model: Path, seed: int) -> Any:  # noqa: ANN401
    """The network with a new head, which the seed determines, and with word embeddings that are not trained."""
    torch.manual_seed(seed)
    module: Any = AutoModelForSequenceClassification.from_pretrained(model, num_labels=2)
    module.get_input_embeddings().requires_grad_(False)
    return module


def nested_of(module: nn.Module, batches: "DataLoader[Any]", **nesting: Any) -> nl.Nested:  # noqa: ANN401
    example, _ = next(iter(batches))
    return nl.nest(module, example, num_blocks=4, num_always=1, sort="norm", **nesting)


def figures(nested: nl.Nested, batches: dict[str, "DataLoader[Any]"], cut: float, draws: int) -> dict[str, float]:
    """The scores at a cut, with the temperature of the validation phrases; ``ece_raw`` is without."""
    with torch.autocast("cpu", torch.bfloat16):
        calibration = nl.calibrate(nested, batches["validation"], cut=cut, samples=draws)
        raw = nl.evaluate(nested, batches["test"], cut=cut, samples=draws)
        options: dict[str, Any] = {"samples": draws, "calibration": calibration, "ood": batches["foreign"]}
        found = nl.evaluate(nested, batches["test"], cut=cut, **options)
    assert isinstance(found, ClassScores)
    assert isinstance(raw, ClassScores)
    row = {"accuracy": 100 * found.accuracy, "nll": found.nll, "ece": 100 * found.ece, "ece_raw": 100 * raw.ece}
    row |= {"nll_raw": raw.nll, "auroc": 100 * (found.auroc or 0.0)}
    row |= {"temperature": calibration.temperature, "macs": nl.cost(nested, cut).macs}
    return {key: round(value, 4) for key, value in row.items()}


def fine_tuned(
    module: nn.Module, method: Method, seed: int, lr: float, batches: dict[str, "DataLoader[Any]"]
) -> tuple[nl.Nested, Sequence[dict[str, Any]]]:
    """The network nested and trained, with the log of its training."""
    teacher = deepcopy(module) if method.first else None
    nested = nested_of(module, batches["test"], **method.nesting)
    recipe = nl.Recipe(epochs=method.epochs, seed=seed, optimiser="adamw", lr=lr, cuts=CUTS, precision="bfloat16")
    recipe = recipe.but(samples=1, keep="last").but(**method.changes)
    data = batches["train"], batches["validation"]
    return nested, nl.train(nested, data, recipe, teacher=teacher, quiet=True).log


def run(model: Path, name: str, seed: int, lr: float) -> dict[str, Any]:
    """One row: the scores at each cut of a network that was trained by a method."""
    method, batches, began = METHODS[name], loaders(model), time.process_time()
    module = pretrained(model, seed)
    if method.first:
        module = fine_tuned(module, replace(FINE_TUNED, epochs=method.first), seed, lr, batches)[0].module
    nested, log = fine_tuned(module, method, seed, lr, batches)
    seconds = time.process_time() - began
    if method.nesting.get("order") == "full":  # cut by norm, without training at any cut
        nested = nested_of(nl.extract(nested, 1.0), batches["test"], weights=None)
    draws = 0 if method.nesting["weights"] is None else DRAWS
    rows = {str(cut): figures(nested, batches, cut, draws) for cut in CUTS}
    row = {"method": name, "seed": seed, "epochs": method.first + method.epochs, "lr": lr, "seconds": round(seconds, 1)}
    validation = {cut: round(100 * scores["accuracy"], 2) for cut, scores in log[-1]["validation"].items()}
    return row | {
        "scoring_seconds": round(time.process_time() - began - seconds, 1),
        "validation": validation,
        "rows": rows,
    }


def table(path: Path) -> None:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        groups[row["method"], row["epochs"], row["lr"]].append(row)
    print("| method (seeds), epochs, learning rate | 25 % | 50 % | 75 % | 100 % | CPU s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (method, epochs, lr), rows in groups.items():
        cells = []
        for cut in CUTS:
            of_cut = [row["rows"][str(cut)] for row in rows]
            means = [statistics.mean(cell[key] for cell in of_cut) for key in SHOWN]
            cells.append("{:.1f} / {:.3f} / {:.1f} ({:.1f}) / {:.1f}".format(*means))
        seconds = statistics.mean(row["seconds"] for row in rows)
        print(f"| {method} ({len(rows)}), {epochs}, {lr:g} | {' | '.join(cells)} | {seconds:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    running = commands.add_parser("run")
    running.add_argument("model", type=Path)
    running.add_argument("methods", nargs="+", choices=tuple(METHODS))
    running.add_argument("--seeds", type=int, nargs="+", default=[0])
    running.add_argument("--lr", type=float, default=1e-4)
    running.add_argument("--out", type=Path, required=True)
    commands.add_parser("table").add_argument("path", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.command == "table":
        table(asked.path)
        return
    made = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done = {(row["method"], row["seed"], row["lr"]) for row in made}
    for seed in asked.seeds:
        for name in asked.methods:
            if (name, seed, asked.lr) not in done:
                row = run(asked.model, name, seed, asked.lr)
                with asked.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
