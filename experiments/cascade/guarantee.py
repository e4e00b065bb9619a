"""How often a proven bound on early errors fails: on independent draws from images whose true error rate is known.

python experiments/cascade/guarantee.py vgg11.safetensors --cuts 0.5 1.0 --bounds 0.05 0.1 --deltas 0.05 0.1 \
    --out guarantee.jsonl

Reads what ``cascades.py outputs`` wrote. Its test images are the population: examples are drawn from them with
replacement, so draws are independent, and the true error rate of any thresholds is their rate over all images. For each
of many samples a cascade is fitted and proven, and two rates are compared with its bound: the true one, which is what
the guarantee is about, and the one measured on as many images again.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from cascades import Answers
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from nestling.cascade import EarlyErrors
from nestling.cascade.choosing import Choice, chosen
from nestling.cascade.outcomes import Outcomes, routed
from nestling.cascade.stages import judged, outcomes_by_score, predicted
from nestling.errors import RangeError
from nestling.prediction import Categorical


def rows(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each bound and delta."""
    kept = load_file(asked.outputs)
    with safe_open(asked.outputs, "pt") as file:
        macs = [int(file.metadata()[f"{cut:g}"]) for cut in asked.cuts]
    population = {f"{cut:g}": (kept[f"test {cut:g}"].double(), kept["test labels"]) for cut in asked.cuts}
    for bound in asked.bounds:
        for delta in asked.deltas:
            about = {"outputs": asked.outputs.stem, "cuts": asked.cuts, "bound": bound, "delta": delta}
            yield about | {"size": asked.size} | counted(population, macs, EarlyErrors(bound, delta), asked)


def counted(population: Answers, macs: list[int], goal: EarlyErrors, asked: argparse.Namespace) -> dict[str, Any]:
    """How many samples were proven, and how often the true and the measured rate are above the bound."""
    found: dict[str, Any] = {"samples": asked.samples, "proven": 0, "true rate above": 0, "measured rate above": 0}
    saved, rates = 0.0, 0.0
    number = len(next(iter(population.values()))[1])
    for seed in range(asked.samples):
        generator = torch.Generator().manual_seed(seed)
        fitting, measuring = torch.randint(number, (2, asked.size), generator=generator)
        parts = reversed([part(answers, fitting) for answers in population.values()])
        try:
            choice = chosen(parts, macs, goal, likelihood=Categorical(), score=asked.score, seed=seed)
        except RangeError:  # nothing is claimed
            continue
        everyone = outcomes(population, macs, choice)
        true, share = early_errors(everyone, choice)
        measured, _ = early_errors(everyone.of(measuring.numpy()), choice)
        found["proven"] += 1
        found["true rate above"] += true > goal.most
        found["measured rate above"] += measured > goal.most
        saved, rates = saved + 1 - share, rates + true
    num = max(1, found["proven"])
    return found | {"mean true rate": rates / num, "mean macs_share": 1 - saved / num}


def part(answers: tuple[Tensor, Tensor], examples: Tensor) -> tuple[Tensor, Tensor]:
    return answers[0][:, examples], answers[1][examples]


def outcomes(answers: Answers, macs: list[int], choice: Choice) -> Outcomes:
    """What each stage, with its fitted temperature, would say of every image."""
    pairs = zip(answers.values(), choice.temperatures, strict=True)
    predictions = [predicted(Categorical(), outputs, temperature) for (outputs, _), temperature in pairs]
    labels = next(iter(answers.values()))[1]
    judgements = [judged(own, labels, predictions[-1]) for own in predictions]
    return outcomes_by_score(judgements, macs)[choice.score]


def early_errors(found: Outcomes, choice: Choice) -> tuple[float, float]:
    """The share of wrong answers among those before the last stage, and the share of the widest cut's cost."""
    end = routed(found, choice.thresholds)
    early = end.stages < len(choice.thresholds) - 1
    return float((early & ~end.correct).sum() / max(1, early.sum())), end.mean_cost / float(found.costs[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outputs", type=Path)
    parser.add_argument("--cuts", type=float, nargs="+", default=[0.5, 1.0])
    parser.add_argument("--bounds", type=float, nargs="+", required=True)
    parser.add_argument("--deltas", type=float, nargs="+", default=[0.05, 0.1])
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--size", type=int, default=5000, help="examples of a fit; one half of them proves")
    parser.add_argument("--score", default="max_probability")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for row in rows(asked):
        with asked.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
