"""A byte-level GPT trained nested from scratch: bits per byte at each width, and decoding with a cut as the draft.

NESTLING_DATA=folder python experiments/transformers/generate.py run nested 1 0.75 0.5 0.25 --limit 11264 \
    --runs runs --out bits.jsonl
python experiments/transformers/generate.py decode --runs runs --out decoding.jsonl
python experiments/transformers/generate.py table bits.jsonl
python experiments/transformers/generate.py table decoding.jsonl --temperature 1

The text is 2.3 MB: the 6,885 sentences of SST-2's training phrases (those that are part of no longer one) and the first
85 % of AG News's test items, since its training items are not at hand. Held out are SST-2's development sentences and
the last 10 % of the items. A cut keeps the same share of heads, of feed-forward units and of layers. ``run`` trains the
nested network, or a plain one of the size of a cut, each on the same number of bytes, in bfloat16 on one thread.
``decode`` measures CPU time per token in turns: in each round every way of decoding continues the same prompt.
"""

import argparse
import csv
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import nestling as nl
from nestling.data import Data, Split
from nestling.generation.decoder import Decoder
from nestling.generation.reader import Reader

sys.path.append(str(Path(__file__).parents[1]))
from rows import Row, add, made, markdown, read

CUTS = (0.25, 0.5, 0.75, 1.0)
LAYERS, STREAM, HEADS, CONTEXT = 8, 96, 4, 128
TRAINED, VALIDATED = 0.85, 0.05
LENGTHS, TEMPERATURES, PROMPT = range(2, 9), (0.0, 1.0), 16
"""Lengths of drafts, temperatures, and the bytes of a prompt; a text fills the context."""
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


def train(name: str, seed: int, epochs: int, limit: int | None, runs: Path) -> Row:
    """One row: the bits per byte of the nested network at each cut, or of a plain network of the size of one."""
    runs.mkdir(parents=True, exist_ok=True)
    data, held_out = corpus(runs)
    data = replace(data, train=data.split("train").drawn(limit))
    torch.manual_seed(seed)
    is_nested = name == "nested"
    module = network(1.0 if is_nested else float(name))
    example = data.split("train").subset(torch.arange(2)).inputs
    nesting = NESTING | {"order": "uniform"} if is_nested else {"order": "full", "weights": None}
    nested = nl.nest(module, example, **nesting)
    recipe = RECIPE.but(seed=seed, epochs=epochs, cuts=CUTS if is_nested else (1.0,))
    began = time.process_time()
    nl.train(nested, data, recipe, out=runs / f"{name}-{seed}", quiet=True)
    row: Row = {"method": name, "seed": seed, "epochs": epochs, "limit": limit, "lr": recipe.lr}
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


def drafts_of(nested: nl.Nested) -> dict[str, Any]:
    """The drafts by name: cuts of everything, of heads and units alone, and of layers alone."""
    narrow = {group.name: 1 for group in nested.groups.free if group.name != "layers"}
    return {f"{100 * cut:.0f} % of all": cut for cut in CUTS[:-1]} | {
        "25 % of heads and units": narrow,
        "25 % of layers": {"layers": 1},
    }


def decode(runs: Path, rounds: int, seed: int) -> Iterator[Row]:
    """A row per draft, its length and temperature: tokens per second beside plain decoding in the same rounds."""
    nested = nl.load(runs / f"nested-{seed}", network()).eval()
    text = (runs / "ag_news.txt").read_bytes()
    whole, cuts = Reader(nested, 1.0, "network"), drafts_of(nested)
    readers = {name: Reader(nested, cut, "draft") for name, cut in cuts.items()}
    ways: dict[tuple[Any, ...], Decoder] = {}
    for temperature in TEMPERATURES:
        ways[None, 0, temperature] = Decoder(whole, temperature=temperature)
        for name, reader in readers.items():
            ways[name, 0, temperature] = Decoder(reader, temperature=temperature)  # by itself
            for length in LENGTHS:
                ways[name, length, temperature] = Decoder(whole, reader, length, temperature)
    seconds: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    texts: dict[tuple[Any, ...], list[nl.Generated]] = defaultdict(list)
    for number in range(-1, rounds):  # the first round warms up
        start = text.index(b"\n", (number + 1) * len(text) // (rounds + 1)) + 1
        prompt = torch.tensor(list(text[start : start + PROMPT]))
        for way, decoder in ways.items():
            began = time.process_time()
            made_text = decoder.generate(prompt, CONTEXT - PROMPT, torch.Generator().manual_seed(number + 1))
            if number >= 0:
                seconds[way].append(time.process_time() - began)
                texts[way].append(made_text)
    for (name, length, temperature), times in seconds.items():
        plain = seconds[None, 0, temperature]
        own, row = texts[name, length, temperature], {"draft": name, "draft_length": length, "temperature": temperature}
        proposed, new = sum(text.proposed for text in own), sum(len(text.new_tokens) for text in own)
        row |= {"rounds": rounds, "seed": seed, "tokens_per_second": round(new / sum(times), 1)}
        row |= {"over_plain": round(statistics.median(a / b for a, b in zip(plain, times, strict=True)), 3)}
        row |= {"acceptance": round(sum(text.accepted for text in own) / max(proposed, 1), 4)}
        yield row | {"tokens_per_pass": round(new / sum(text.passes for text in own), 3)}


def bits_table(rows: list[Row]) -> str:
    head = ["network", *(f"{100 * cut:.0f} %" for cut in CUTS), "bytes read", "CPU s"]
    plain = {next(iter(row["rows"])): row for row in rows if row["method"] != "nested"}
    lines = []
    for row in rows:
        if row["method"] == "nested":
            lines.append(["nested", *map(_cell, (row["rows"][str(cut)] for cut in CUTS)), *_cost([row])])
    if plain:
        cells = [_cell(plain[str(cut)]["rows"][str(cut)]) if str(cut) in plain else "-" for cut in CUTS]
        lines.append(["plain, each size alone", *cells, *_cost(list(plain.values()))])
    sizes = next(row["rows"] for row in rows if row["method"] == "nested")
    lines.append(["parameters", *(f"{sizes[str(cut)]['params']:,}" for cut in CUTS), "", ""])
    return markdown(head, lines)


def _cell(of: Row) -> str:
    return f"{of['ag_news']:.3f} / {of['sst2']:.3f}"


def _cost(rows: list[Row]) -> list[str]:
    return [" + ".join(f"{row['bytes']:,}" for row in rows[:1]), f"{sum(row['seconds'] for row in rows):.0f}"]


def decoding_table(rows: list[Row], temperature: float) -> str:
    of = {(row["draft"], row["draft_length"]): row for row in rows if row["temperature"] == temperature}
    lines = []
    for name in dict.fromkeys(name for name, _ in of if name):
        alone = of[name, 0]
        cells = [_decoding_cell(of[name, n]) for n in LENGTHS]
        lines.append([name, f"{alone['over_plain']:.2f}", *cells])
    return markdown(["draft", "by itself", *map(str, LENGTHS)], lines)


def _decoding_cell(row: Row) -> str:
    """How fast, the share of accepted proposals, and the share from which a round gives more tokens than it costs."""
    needed = (row["tokens_per_pass"] / row["over_plain"] - 1) / row["draft_length"]
    pays = f"pays from {max(needed, 0):.0%}" if needed <= 1 else "never pays"
    return f"{row['over_plain']:.2f} ({row['acceptance']:.0%}, {pays})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    training, decoding = commands.add_parser("run"), commands.add_parser("decode")
    training.add_argument("methods", nargs="+", choices=("nested", *(f"{cut:g}" for cut in CUTS)))
    training.add_argument("--epochs", type=int, default=RECIPE.epochs)
    training.add_argument("--limit", type=int, help="at most so many rows of the text, drawn at random")
    decoding.add_argument("--rounds", type=int, default=8)
    for command in (training, decoding):
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--runs", type=Path, required=True)
        command.add_argument("--out", type=Path, required=True)
    showing = commands.add_parser("table")
    showing.add_argument("path", type=Path)
    showing.add_argument("--temperature", type=float)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.command == "table":
        rows = read(asked.path)
        print(bits_table(rows) if asked.temperature is None else decoding_table(rows, asked.temperature))
    elif asked.command == "decode":
        for row in decode(asked.runs, asked.rounds, asked.seed):
            add(asked.out, row)
    else:
        for name in asked.methods:
            if not made(asked.out, method=name, seed=asked.seed, epochs=asked.epochs, limit=asked.limit):
                add(asked.out, train(name, asked.seed, asked.epochs, asked.limit, asked.runs))


if __name__ == "__main__":
    main()
