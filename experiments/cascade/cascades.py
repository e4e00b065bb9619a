"""Cascades on MNIST and CIFAR-10: how much of the full width's average cost they need, and what they lose.

NESTLING_DATA=folder python experiments/cascade/cascades.py train mnist --epochs 3 --out runs/mnist
NESTLING_DATA=folder python experiments/cascade/cascades.py run runs/mnist --out cascades.jsonl
python experiments/cascade/cascades.py table cascades.jsonl

NESTLING_DATA=folder PYTHONPATH=experiments/bn3 python experiments/cascade/cascades.py train resnet20 \
    --weights resnet20.safetensors --epochs 1 --precision bfloat16 --out runs/resnet20
NESTLING_DATA=folder PYTHONPATH=experiments/bn3 python experiments/cascade/cascades.py run runs/resnet20 \
    --network resnet20 --weights resnet20.safetensors --fit-on test_halves --out cascades.jsonl

NESTLING_DATA=folder PYTHONPATH=experiments/bn3 python experiments/cascade/cascades.py resample runs/resnet20 \
    --network resnet20 --weights resnet20.safetensors

NESTLING_DATA=folder PYTHONPATH=experiments/bn3 python experiments/cascade/cascades.py train vgg11 --posterior ivon \
    --epochs 17 --precision bfloat16 --out runs/vgg11
NESTLING_DATA=folder python experiments/cascade/cascades.py outputs runs/vgg11 --samples 6 --out vgg11.safetensors
python experiments/cascade/cascades.py resplit vgg11.safetensors --cuts 0.5 1.0 --fit-on test_halves --splits 100 \
    --goals early_errors=0.05 --out resplit.jsonl

``run`` takes any run of a classifier that ``nl.train`` or ``nestling train`` wrote; ``--network`` nests it anew where
its folder does not say how it is built. Thresholds are fitted on the validation data and scored on the test data. With
``--fit-on test_halves`` they are fitted on one half of the test data and scored on the other, and the other way round:
for a network that was pretrained on all training data, also on those that validate here. Milliseconds are of CPU time,
of whole cascades and of the widest cut alone, in turns over the same images. ``outputs`` runs every cut once over all
images and keeps what it says; ``resplit`` fits and scores cascades on these outputs, over as many splits as are asked.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import nestling as nl
from nestling.cascade import Cascade, EarlyErrors, Goal, Loss, read_goal
from nestling.cascade.choosing import chosen
from nestling.cascade.outcomes import Outcomes, routed
from nestling.cascade.stages import judged, outcomes_by_score, outputs_at, predicted
from nestling.data import Batches, Data
from nestling.errors import RangeError
from nestling.prediction import Categorical, fit_temperature
from nestling.reading import make_cut
from nestling.training import make_feed


def mnist(asked: argparse.Namespace) -> tuple[nl.Nested, Data, dict[str, Any]]:
    """The multilayer perceptron 784-512-128-10, of which a sixteenth can be kept, for the data set by its name."""
    module = nl.models.build("mlp", hidden=[512, 128])
    nested = nl.nest(module, torch.zeros(2, 1, 28, 28), num_blocks=32, num_always=2, weights=asked.posterior)
    return nested, nl.data.load(asked.network, seed=asked.seed), {}


def resnet20(asked: argparse.Namespace) -> tuple[nl.Nested, Data, dict[str, Any]]:
    """The pretrained ResNet-20 of experiments/bn3/pretrained.py, nested and fine-tuned as it is there."""
    from pretrained import MEAN, STD, pretrained  # in experiments/bn3, which PYTHONPATH names

    module = nl.models.build("pretrained:ResNet20")
    module.load_state_dict(load_file(asked.weights), strict=False)  # it has no counts of batches
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on a CPU
    options = {"num_blocks": 16, "num_always": 2, "sort": "norm", "weights": asked.posterior}
    nested = nl.nest(module.eval(), torch.zeros(2, 3, 32, 32), **options)
    data = replace(nl.data.load("cifar10", seed=asked.seed), mean=MEAN, std=STD)
    return nested, data, {"teacher": pretrained(asked.weights)}


def vgg11(asked: argparse.Namespace) -> tuple[nl.Nested, Data, dict[str, Any]]:
    """The VGG11 of experiments/bn3/widths.py with a quarter of the channels, trained from scratch, nested as there."""
    from widths import module_of, nested_of  # in experiments/bn3, which PYTHONPATH names

    order = {} if asked.order is None else {"order": asked.order}
    nested = nested_of(module_of("vgg11", asked.seed), weights=asked.posterior, **order)
    return nested, nl.data.load("cifar10", seed=asked.seed), {}


NETWORKS: dict[str, Callable[[argparse.Namespace], tuple[nl.Nested, Data, dict[str, Any]]]] = {
    "mnist": mnist,
    "fashion_mnist": mnist,
    "kmnist": mnist,
    "resnet20": resnet20,
    "vgg11": vgg11,
}


def train(asked: argparse.Namespace) -> None:
    torch.manual_seed(asked.seed)
    nested, data, options = NETWORKS[asked.network](asked)
    cuts = (0.25, 0.5, 0.75, 1.0)
    recipe = nl.Recipe(epochs=asked.epochs, seed=asked.seed, cuts=cuts, precision=asked.precision)
    began = time.process_time()
    nl.train(nested, data, recipe, out=asked.out, **options)
    print(f"{asked.out}: {time.process_time() - began:.0f} CPU seconds", flush=True)


def run(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each goal and each half of the data that thresholds are fitted on."""
    found, data = opened(asked)
    for fold, (fitting, testing) in enumerate(parts(data, asked.fit_on)):
        for goal in asked.goals:
            casc = nl.cascade(found.nested, asked.cuts, fitting, goal=goal, score=asked.score, samples=asked.samples)
            row = {"run": asked.folder.name, "cuts": asked.cuts, "goal": goal, "fit_on": asked.fit_on, "fold": fold}
            yield row | {"samples": asked.samples, "score": casc.score} | figures(casc, testing)


def opened(asked: argparse.Namespace) -> tuple[nl.Run, Data]:
    """A run with statistics of norms at the cuts, and its data."""
    nested = None if asked.network is None else NETWORKS[asked.network](asked)[0]
    found = nl.open_run(asked.folder, nested, trust=True)
    about = found.data
    data = replace(nl.data.load(**about["loaded_with"]), mean=tuple(about["mean"]), std=tuple(about["std"]))
    for cut in asked.cuts:
        if found.calibration(cut) is None and found.nested.statistics:
            nl.recalibrate(found.nested, make_feed(data, found.recipe).recalibration, cut)
    return found, data


def outputs(asked: argparse.Namespace) -> None:
    """Write what every cut says of every validation and test image: the outputs (S, N, C), and the labels (N,)."""
    if asked.state is None:
        found, data = opened(asked)
        nested = found.nested
    else:
        nested, data, _ = NETWORKS[asked.network](asked)
        nested.load_state_dict(load_file(asked.state))
        recalibration = make_feed(data, nl.Recipe(seed=asked.seed)).recalibration
        for cut in asked.cuts:
            nl.recalibrate(nested, recalibration, cut)
    options: dict[str, Any] = {"samples": asked.samples, "likelihood": Categorical(), "seed": 0, "by": "draws"}
    tensors: dict[str, Tensor] = {}
    for split in ("validation", "test"):
        for cut in asked.cuts:
            answers, labels = outputs_at(nested, make_cut(nested.groups, cut), data.batches(split, 500), **options)
            tensors |= {f"{split} {cut:g}": answers.float(), f"{split} labels": labels}
            print(f"{split} {cut:g}", flush=True)
    macs = {f"{cut:g}": str(nl.cost(nested, cut).macs) for cut in asked.cuts}
    save_file(tensors, asked.out, metadata=macs)


Answers = dict[str, tuple[Tensor, Tensor]]
"""What each cut says of some examples, and their labels, the narrowest cut first."""


def resplit(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """For each goal what cascades come to whose thresholds are fitted on some of the kept outputs, on the others."""
    with safe_open(asked.outputs, "pt") as file:
        macs = [int(file.metadata()[f"{cut:g}"]) for cut in asked.cuts]
    for goal in asked.goals:
        wanted = read_goal(goal)
        rows, refused = list[dict[str, float]](), 0
        for fitting, testing in partitions(asked, asked.fit_on):
            try:
                rows.append(_fitted_and_scored(wanted, macs, asked.score, fitting, testing))
            except RangeError:  # the bound can't be proven on these examples, so nothing is claimed
                refused += 1
        about = {"outputs": asked.outputs.stem, "cuts": asked.cuts, "goal": goal, "fit_on": asked.fit_on}
        found = {f"mean {name}": statistics.mean(row[name] for row in rows) for name in rows[0]}
        found |= {"splits": len(rows), "refused": refused, "worst loss": max(row["loss"] for row in rows)}
        if isinstance(wanted, EarlyErrors):
            found["under the bound"] = sum(row["early_errors"] <= wanted.most for row in rows)
        if isinstance(wanted, Loss):
            found["within the loss"] = sum(row["loss"] <= wanted.most for row in rows)
        yield about | found


def partitions(asked: argparse.Namespace, fit_on: str) -> Iterator[tuple[Answers, Answers]]:
    """Outputs to fit on, and to score on: of validation and test images, or of halves of the test images at random."""
    kept = load_file(asked.outputs)

    def of(split: str, rows: Tensor | slice = slice(None)) -> Answers:
        labels = kept[f"{split} labels"][rows]
        return {f"{cut:g}": (kept[f"{split} {cut:g}"].double()[:, rows], labels) for cut in asked.cuts}

    if fit_on == "validation":
        yield of("validation"), of("test")
        return
    for seed in range(asked.splits):
        order = torch.randperm(len(kept["test labels"]), generator=torch.Generator().manual_seed(seed))
        first, second = order.chunk(2)
        yield of("test", first), of("test", second)


def _fitted_and_scored(
    goal: Goal, macs: Sequence[int], score: str, fitting: Answers, testing: Answers
) -> dict[str, float]:
    choice = chosen(reversed(fitting.values()), macs, goal, likelihood=Categorical(), score=score)
    pairs = zip(testing.values(), choice.temperatures, strict=True)
    predictions = [predicted(Categorical(), outputs, temperature) for (outputs, _), temperature in pairs]
    labels = next(iter(testing.values()))[1]
    judgements = [judged(own, labels, predictions[-1]) for own in predictions]
    outcomes = outcomes_by_score(judgements, macs)[choice.score]
    end = routed(outcomes, choice.thresholds)
    early = end.stages < len(macs) - 1
    scores = torch.stack([own.nonconformity for own in judgements]).gather(0, torch.from_numpy(end.stages)[None])[0]
    return {
        "accuracy": end.accuracy,
        "loss": float(outcomes.correct[-1].mean()) - end.accuracy,
        "macs_share": end.mean_cost / macs[-1],
        "early": float(early.mean()),
        "early_errors": float((early & ~end.correct).sum() / max(1, early.sum())),
        "coverage of 90 % sets": float((scores <= choice.set_thresholds[0.9]).double().mean()),
    }


def parts(data: Data, fit_on: str) -> list[tuple[Batches, Batches]]:
    """The batches that thresholds are fitted on, and those that they are scored on."""
    if fit_on == "validation":
        return [(data.batches("validation", 500), data.batches("test", 500))]
    test = data.split("test")
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    halves = [
        replace(data, test=replace(test, inputs=test.inputs[rows], targets=test.targets[rows])).batches("test", 500)
        for rows in order.chunk(2)
    ]
    return [(halves[0], halves[1]), (halves[1], halves[0])]


def figures(casc: Cascade, testing: Batches) -> dict[str, Any]:
    """The scores of a cascade, beside each cut by itself, on data that had no part in the fit."""
    scores, beside = casc.evaluate(testing), casc.compare(testing)
    assert scores.scores is not None
    own: dict[str, Any] = {"accuracy": scores.scores.accuracy, "nll": scores.scores.nll, "ece": scores.scores.ece}
    own |= {"loss": beside.loss, "loss_bounds": beside.loss_bounds, "macs_share": scores.macs_share}
    early = [stage for stage in scores.stages if stage.name != casc.stages[-1].name]
    answered = sum(stage.answered for stage in early)
    wrong = sum(stage.answered * (1 - (stage.accuracy or 0.0)) for stage in early)
    own |= {"early": answered, "early_errors": wrong / answered if answered else None}
    images = torch.cat([x for x, _ in testing])[:IMAGES]
    whole_ms, ms = milliseconds(casc, images)
    own |= {"macs_share_of_timed": casc.predict(images).mean_macs / casc.stages[-1].macs}
    own |= {"ms": ms, "whole_ms": whole_ms, "thresholds": [stage.finite_threshold for stage in casc.stages]}
    return own | {"alone": [[point.macs, point.accuracy] for point in beside.alone]}


IMAGES = 400
"""How many images are timed, each by itself."""


@torch.no_grad()
def milliseconds(casc: Cascade, images: Tensor) -> tuple[float, float]:
    """CPU milliseconds per image of the widest cut alone, and of the cascade of plain networks with mean weights."""
    networks = [nl.extract(casc.nested, stage.cut) for stage in casc.stages]
    times = [0.0, 0.0]
    for image in images.unsqueeze(1):
        for which, stages in enumerate(([len(networks) - 1], [n for n, stage in enumerate(casc.stages) if stage.runs])):
            began = time.process_time()
            for number in stages:
                stage = casc.stages[number]
                prediction = Categorical().predictive(
                    networks[number](image).unsqueeze(0), temperature=stage.calibration.temperature
                )
                if float(prediction.unfamiliarity()[casc.score]) <= stage.threshold:
                    break
            times[which] += time.process_time() - began
    return 1e3 * times[0] / len(images), 1e3 * times[1] / len(images)


def resample(asked: argparse.Namespace) -> dict[str, Any]:
    """What thresholds for a loss cost and lose on the other half of the test data, over random halves.

    Once they are fitted by what the widest cut expects of each answer, and once by counts of right answers.
    """
    found, data = opened(asked)
    nested, test, goal = found.nested, data.batches("test", 500), Loss(asked.loss)
    options: dict[str, Any] = {"samples": asked.samples, "likelihood": Categorical(), "seed": 0, "by": "draws"}
    outputs = {cut: outputs_at(nested, make_cut(nested.groups, cut), test, **options) for cut in asked.cuts}
    macs = [nl.cost(nested, cut).macs for cut in asked.cuts]
    figures: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for seed in range(asked.splits):
        halves = torch.randperm(len(data.split("test")), generator=torch.Generator().manual_seed(seed)).chunk(2)
        predictions = []
        for logits, labels in outputs.values():
            temperature = fit_temperature(Categorical(), logits[:, halves[0]], labels[halves[0]])
            predictions.append(predicted(Categorical(), logits, temperature))
        judgements = [judged(own, labels, predictions[-1]) for own in predictions]
        outcomes = outcomes_by_score(judgements, macs)["max_probability"]
        fitting, testing = (outcomes.of(half.numpy()) for half in halves)
        counted = Outcomes.counted(fitting.scores, fitting.correct, fitting.costs)
        for name, given in (("expected", fitting), ("counted", counted)):
            end = routed(testing, goal.fit(given, given).thresholds)
            figures[name].append((float(testing.correct[-1].mean()) - end.accuracy, end.mean_cost / macs[-1]))
    return {"run": asked.folder.name, "cuts": asked.cuts, "loss": asked.loss, "splits": asked.splits} | {
        name: {
            "loss": statistics.mean(loss for loss, _ in own),
            "worst": max(loss for loss, _ in own),
            "within": statistics.mean(loss <= asked.loss for loss, _ in own),
            "macs_share": statistics.mean(share for _, share in own),
        }
        for name, own in figures.items()
    }


def table(path: Path) -> None:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        key = (row["run"], " ".join(map(str, row["cuts"])), row["goal"], str(row["samples"]), row["fit_on"])
        groups[key].append(row)
    header = "run | cuts | goal | draws | fitted on | score | accuracy % (widest alone) | points lost | MACs | CPU ms"
    print(f"| {header} | early: share, wrong |\n|{' --- |' * 11}")
    for key, rows in groups.items():
        mean = {
            name: statistics.mean(row[name] for row in rows) for name in ("accuracy", "loss", "macs_share", "early")
        }
        widest = statistics.mean(row["alone"][-1][1] for row in rows)
        ratio = statistics.mean(row["ms"] / row["whole_ms"] for row in rows)
        expected = statistics.mean(row["macs_share_of_timed"] for row in rows)
        half = statistics.mean((row["loss_bounds"][1] - row["loss_bounds"][0]) / 2 for row in rows) / len(rows) ** 0.5
        wrong = statistics.mean(row["early_errors"] or 0.0 for row in rows)
        cells = [*key, ", ".join(sorted({row["score"] for row in rows}))]
        cells.append(f"{100 * mean['accuracy']:.2f} ({100 * widest:.2f})")
        cells.append(f"{100 * mean['loss']:.2f} ±{100 * half:.2f}")
        cells.append(f"{mean['macs_share']:.3f}x")
        cells.append(f"{ratio:.3f}x (MACs there {expected:.3f}x)")
        cells.append(f"{mean['early']:.1%}, {wrong:.2%}")
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    training, running = commands.add_parser("train"), commands.add_parser("run")
    training.add_argument("network", choices=NETWORKS)
    running.add_argument("--network", choices=NETWORKS)
    again = commands.add_parser("resample")
    again.add_argument("--network", choices=NETWORKS)
    again.add_argument("--loss", type=float, default=0.002)
    again.add_argument("--splits", type=int, default=20)
    keeping = commands.add_parser("outputs")
    keeping.add_argument("--network", choices=NETWORKS)
    keeping.add_argument("--state", type=Path, help="the tensors of a trained nested network, in place of a run")
    keeping.add_argument("--out", type=Path, required=True)
    splitting = commands.add_parser("resplit")
    splitting.add_argument("outputs", type=Path)
    splitting.add_argument("--cuts", type=float, nargs="+", default=[0.25, 0.5, 1.0])
    splitting.add_argument("--splits", type=int, default=20)
    for command in (training, running, again, keeping):
        command.add_argument("--weights", type=Path, help="the pretrained weights of the ResNet-20")
        command.add_argument("--posterior", choices=("ivon", "gaussian"), help="of the weights; plain if left out")
        command.add_argument("--order", choices=("uniform",), help="of the VGG11's blocks; the default if left out")
        command.add_argument("--seed", type=int, default=0)
    training.add_argument("--epochs", type=int, default=3)
    training.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    training.add_argument("--out", type=Path, required=True)
    for command in (running, again, keeping):
        command.add_argument("folder", type=Path, nargs="?" if command is keeping else None)
        command.add_argument("--cuts", type=float, nargs="+", default=[0.25, 0.5, 1.0])
        command.add_argument("--samples", type=int, default=0)
    for command in (running, splitting):
        command.add_argument("--goals", nargs="+", default=["loss=0.002", "macs=0.5x", "early_errors=0.02"])
        command.add_argument("--score", default="auto")
        command.add_argument("--fit-on", choices=("validation", "test_halves"), default="validation")
        command.add_argument("--out", type=Path, required=True)
    commands.add_parser("table").add_argument("path", type=Path)
    asked = parser.parse_args()
    if asked.command == "outputs" and (asked.folder is None) == (asked.state is None):
        keeping.error("give the folder of a run, or --state with --network")
    torch.set_num_threads(1)
    if asked.command == "train":
        train(asked)
    elif asked.command == "table":
        table(asked.path)
    elif asked.command == "outputs":
        outputs(asked)
    elif asked.command == "resample":
        print(json.dumps(resample(asked)))
    else:
        for row in resplit(asked) if asked.command == "resplit" else run(asked):
            with asked.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
