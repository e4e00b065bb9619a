"""What limits a cascade of two cuts: the score that decides, the answers that are combined, or the narrow cut itself.

python experiments/cascade/limits.py vgg11.safetensors --share 0.5 --out limits.jsonl

Reads what ``cascades.py outputs`` wrote. The narrow cut answers what a score holds to be sure, and the widest cut the
rest, so that the average cost is exactly the share of the widest cut's. All is fitted on the validation images, and the
loss is that on the test images. A second stage answers by itself, or by a weighted sum of the log-probabilities of both
stages, whose weights have the least NLL. The scores are those of the library, the ``margin`` between the two largest
probabilities, a ``learned`` one (least squares for what the second stage expects to gain, from eight figures of the
narrow cut's probabilities), and ``hindsight``: whether the narrow cut is wrong and the second stage right, which nobody
knows.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

SPLITS = ("validation", "test")
Split = Mapping[str, Tensor]
"""A tensor for the validation images, and one for the test images."""


def rows(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each narrow cut, for answers by themselves and combined ones."""
    kept = load_file(asked.outputs)
    with safe_open(asked.outputs, "pt") as file:
        macs = {cut: int(value) for cut, value in file.metadata().items()}
    labels = {split: kept[f"{split} labels"] for split in SPLITS}
    cuts = [f"{cut:g}" for cut in asked.cuts]
    logits = {cut: {split: kept[f"{split} {cut}"][0].double() for split in SPLITS} for cut in cuts}
    widest = cuts[-1]
    whole = accuracy(logits[widest]["test"], labels["test"])
    for narrow in cuts[:-1]:
        going_on = asked.share - macs[narrow] / macs[widest]
        if going_on <= 0:
            continue
        first = combined([logits[narrow]], labels)
        for combines in (False, True):
            second = combined([logits[narrow], logits[widest]] if combines else [logits[widest]], labels)
            lost = {}
            for name, score in scores(first, second, labels).items():
                goes_on = score > score.quantile(1 - going_on)
                answers = torch.where(goes_on, second["test"].argmax(1), first["test"].argmax(1))
                lost[name] = round(100 * (whole - float((answers == labels["test"]).double().mean())), 2)
            alone = {"narrow": accuracy(first["test"], labels["test"]), "widest": whole}
            about = {
                "outputs": asked.outputs.stem,
                "cuts": [narrow, widest],
                "share": asked.share,
                "combines": combines,
            }
            all_of_both = accuracy(second["test"], labels["test"])
            yield about | {
                "share": asked.share,
                "alone": alone,
                "second stage for all": all_of_both,
                "points lost": lost,
            }


def combined(stages: Sequence[Split], labels: Split) -> Split:
    """The log-probabilities of a weighted sum of stages; for one stage the weight is one over its temperature."""
    terms = {split: torch.stack([stage[split].log_softmax(1) for stage in stages]) for split in SPLITS}
    weights = torch.tensor([0.0] * (len(stages) - 1) + [1.0], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        nll = cross_entropy(torch.tensordot(weights, terms["validation"], 1), labels["validation"])
        nll.backward()  # type: ignore[no-untyped-call]
        return nll

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return {split: torch.tensordot(weights.detach(), terms[split], 1).log_softmax(1) for split in SPLITS}


def scores(first: Split, second: Split, labels: Split) -> dict[str, Tensor]:
    """How unsure the first stage is of each test image, by every score."""
    figures = {split: figures_of(first[split]) for split in SPLITS}
    expected = second["validation"].exp()
    gain = expected.amax(1) - expected.gather(1, first["validation"].argmax(1, keepdim=True))[:, 0]
    learned = torch.linalg.lstsq(figures["validation"], gain.unsqueeze(1)).solution
    test = figures["test"]
    right, late = (own["test"].argmax(1) == labels["test"] for own in (first, second))
    return {
        "max_probability": -test[:, 1],
        "entropy": test[:, 4],
        "margin": test[:, 2] - test[:, 1],
        "learned": (test @ learned)[:, 0],
        "hindsight": late.double() - right.double(),
    }


def figures_of(log_probs: Tensor) -> Tensor:
    """Figures (N, 8) of log-probabilities (N, C): one, the three largest probabilities, entropy, and three products."""
    probs = log_probs.exp()
    best, next_best, third = probs.topk(3, 1).values.unbind(1)
    entropy, squares = -(probs * log_probs).sum(1), probs.square().sum(1)
    return torch.stack([torch.ones_like(best), best, next_best, third, entropy, squares, best * next_best, best**3], 1)


def accuracy(log_probs: Tensor, labels: Tensor) -> float:
    return float((log_probs.argmax(1) == labels).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outputs", type=Path)
    parser.add_argument("--cuts", type=float, nargs="+", default=[0.25, 0.375, 0.5, 1.0], help="the widest is the last")
    parser.add_argument("--share", type=float, default=0.5, help="the average cost, as a share of the widest cut's")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for row in rows(asked):
        with asked.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
