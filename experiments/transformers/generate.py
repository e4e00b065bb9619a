"""A byte-level GPT trained nested from scratch: bits per byte at each width, and decoding with a cut as the draft.

NESTLING_DATA=folder python experiments/transformers/generate.py train nested 1 0.75 0.5 0.25 --runs runs
NESTLING_DATA=folder python experiments/transformers/generate.py decode --runs runs
python experiments/transformers/generate.py table

The rows go to ``generate.jsonl`` beside this file. The text is 2.3 MB: the 6,885 sentences of SST-2's training phrases
(those that are part of no longer one) and the first 85 % of AG News's test items, since its training items are not at
hand. Held out are SST-2's development sentences and the last 10 % of the items. A cut keeps the same share of heads, of
feed-forward units and of layers. ``train`` trains the nested network, or a plain one of the size of a cut, each on the
same number of bytes, in bfloat16 on one thread.
"""

import argparse
import csv
import json
import math
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import nestling as nl
from nestling.data import Data, Split

ROWS = Path(__file__).with_suffix(".jsonl")
CUTS = (0.25, 0.5, 0.75, 1.0)
LAYERS, STREAM, HEADS, CONTEXT = 8, 96, 4, 128
TRAINED, VALIDATED = 0.85, 0.05
NESTING: dict[str, Any] = {"num_blocks": 4, "num_always": 1, "kinds": ("head", "neuron", "layer"), "weights": None}
RECIPE = nl.Recipe(epochs=1, batch_size=16, lr=0.003, clip=1.0, precision="bfloat16", cuts=CUTS, keep="last")


def corpus(folder: Path) -> tuple[Data, dict[str, Split]]:
    """The data to train on, and the held-out rows by where they come from; ``folder`` gets its texts as files."""
    sst2, news = nl.data.data_root() / "sst2", _news(nl.data.data_root() / "ag_news" / "test.csv")
    ends = [0, round(TRAINED * len(news)), round((TRAINED + VALIDATED) * len(news)), len(news)]
    parts = [news[first:last] for first, last in pairwise(ends)]
    texts = {"train": _sentences(sst2 / "train.tsv") + parts[0], "validation": parts[1]}
    texts |= {"sst2": _phrases(sst2 / "dev.tsv"), "ag_news": parts[2]}
    splits = {}
    for name, lines in texts.items():
        path = folder / f"{name}.txt"
        path.write_text("\n".join(lines) + "\n")
        loaded = nl.data.load(path, max_length=CONTEXT, validation=0)
        splits[name] = _joined([loaded.split("train"), loaded.split("test")])
    chosen = {"train": splits["train"], "validation": splits["validation"], "test": splits["ag_news"]}
    data = replace(loaded, name="sst2 and ag_news", loaded_with=None, **chosen)  # type: ignore[arg-type]
    return data, {name: splits[name] for name in ("sst2", "ag_news")}


def _joined(splits: list[Split]) -> Split:
    tokens = torch.cat([split.inputs["tokens"] for split in splits])
    return Split({"tokens": tokens}, torch.cat([split.targets for split in splits]))


def _phrases(path: Path) -> list[str]:
    return [line.partition("\t")[2].strip() for line in path.read_text().splitlines()[1:]]


def _sentences(path: Path) -> list[str]:
    """The phrases that are part of no longer one, in an order that does not depend on their length."""
    whole, kept = "", []
    for phrase in sorted(set(_phrases(path)), key=lambda text: (-len(text), text)):
        if phrase not in whole:
            kept.append(phrase)
            whole += phrase + "\n"
    return sorted(kept)


def _news(path: Path) -> list[str]:
    with path.open(newline="") as file:
        return [f"{title} {text}".replace("\\", " ") for _, title, text in csv.reader(file)]


def network(cut: float = 1.0) -> nl.models.GPT:
    """A new network of the size of a cut."""
    return nl.models.GPT(
        context=CONTEXT, layers=round(LAYERS * cut), stream=STREAM, heads=HEADS, hidden=4 * STREAM, width=cut
    )


def train(name: str, seed: int, epochs: int, runs: Path) -> dict[str, Any]:
    """One row: the bits per byte of the nested network at each cut, or of a plain network of the size of one."""
    runs.mkdir(parents=True, exist_ok=True)
    data, held_out = corpus(runs)
    torch.manual_seed(seed)
    is_nested = name == "nested"
    module = network(1.0 if is_nested else float(name))
    example = data.split("train").subset(torch.arange(2)).inputs
    nesting = NESTING | {"order": "uniform"} if is_nested else {"order": "full", "weights": None}
    nested = nl.nest(module, example, **nesting)
    recipe = RECIPE.but(seed=seed, epochs=epochs, cuts=CUTS if is_nested else (1.0,))
    began = time.process_time()
    nl.train(nested, data, recipe, out=runs / f"{name}-{seed}", quiet=True)
    row: dict[str, Any] = {"kind": "bits", "method": name, "seed": seed, "epochs": epochs, "lr": recipe.lr}
    row |= {"bytes": epochs * len(data.split("train")) * CONTEXT, "seconds": round(time.process_time() - began, 1)}
    row["rows"] = {}
    for cut in recipe.cuts:
        cost = nl.cost(nested, cut)
        of: dict[str, float] = {"params": cost.params, "macs": cost.macs}
        for where, split in held_out.items():
            batches = replace(data, test=split).batches("test", 100)
            of[where] = round(nl.evaluate(nested, batches, cut=cut, samples=0).nll / math.log(2), 4)
        row["rows"][str(cut if is_nested else float(name))] = of
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    training = commands.add_parser("train")
    training.add_argument("methods", nargs="+", choices=("nested", *(f"{cut:g}" for cut in CUTS)))
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--epochs", type=int, default=RECIPE.epochs)
    training.add_argument("--runs", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in asked.methods:
        row = train(name, asked.seed, asked.epochs, asked.runs)
        with ROWS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
