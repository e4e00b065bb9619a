"""The tables of docs/results.md and of the README: the papers' figures beside ours, from the rows of all experiments.

python experiments/summary.py bn3
"""

import shlex
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
sys.path += [str(Path(__file__).parent / paper) for paper in ("vbd", "beta_bernoulli")]
import dropout
import units
from rows import Row, grouped, markdown, read, spread

HERE = Path(__file__).parent
WIDTHS = ("0.25", "0.5", "0.75", "1.0")
HEAD = ("what", "paper", "ours", "seeds", "command", "CPU s per seed")
SECONDS = ("CPU seconds", "cpu_seconds", "seconds", "CPU seconds to train")
"""The names that rows have for it; the ``seconds`` of MNIST are not of the CPU."""
Rows = list[Row]
DROPOUT = {name: dict(zip(map(str, dropout.WIDTHS), errors, strict=True)) for name, errors in dropout.PAPER.items()}
"""The errors of VBD's table, by method and width."""


def rows_of(name: str, **wanted: object) -> Rows:
    """The rows of a file that have these values."""
    return [row for row in read(HERE / name) if all(row.get(key) == value for key, value in wanted.items())]


def line(what: str, paper: str, ours: str, rows: Rows, command: str) -> list[str]:
    """A row of a table, with the seeds and the CPU time of the rows that it is made of."""
    seeds = {row["seed"] for row in rows}
    times = [row[key] for row in rows for key in SECONDS if key in row and "mnist.py" not in command]
    seconds = f"{sum(times) / len(seeds):.0f}" if len(times) == len(rows) else "not kept"
    return [what, paper, ours, str(len(seeds)), f"`{command}`", seconds]


def vgg11(method: str, budget: int = 12) -> Rows:
    return rows_of("bn3/widths.jsonl", network="vgg11", budget=budget, precision="bfloat16", method=method)


def at_widths(rows: Rows, key: str) -> list[float]:
    """The mean over seeds at each of the four widths."""
    return [statistics.mean(row["rows"][width][key] for row in rows if width in row["rows"]) for width in WIDTHS]


def over_widths(rows: Rows, key: str, digits: int) -> str:
    """Mean and spread over seeds at each of the four widths."""
    columns = ([row["rows"][width][key] for row in rows if width in row["rows"]] for width in WIDTHS)
    return ", ".join(spread(column, digits) for column in columns)


def margins(ours: Sequence[float], theirs: Sequence[float], digits: int) -> str:
    return ", ".join(f"{a - b:+.{digits}f}" for a, b in zip(ours, theirs, strict=True))


def bn3() -> Iterator[list[str]]:
    run, alone, published = "bn3/widths.py run", vgg11("alone"), vgg11("fn3")
    for label, method in {"Bayesian weights": "nested, 16 epochs", "plain weights": "nested_plain"}.items():
        own = vgg11(method)
        command = f"{run} {'nested' if 'nested,' in method else method}"
        about = f"VGG11, CIFAR-10, at 25, 50, 75, 100 %, {label}:"
        yield line(f"{about} accuracy %", "a curve", over_widths(own, "accuracy", 1), own, command)
        for key, name, paper in (
            ("accuracy", "accuracy above FN3", "above at every width"),
            ("ece", "ECE above FN3", "below at every width"),
            ("aupr", "AUPR above FN3", "above at every width"),
        ):
            yield line(
                f"{about} {name}", paper, margins(at_widths(own, key), at_widths(published, key), 1), own, command
            )
        ours, theirs = at_widths(own, "accuracy"), at_widths(alone, "accuracy")
        yield line(
            f"{about} accuracy above networks trained alone", "about equal", margins(ours, theirs, 1), own, command
        )
    yield line(
        "The same, four networks trained alone: accuracy %",
        "a curve",
        over_widths(alone, "accuracy", 1),
        alone,
        f"{run} alone",
    )
    for method, about in {"nested_plain": "one narrower cut", "nested_plain_two": "two narrower cuts"}.items():
        long = vgg11(method, 40)
        yield line(
            f"The same, 40 epochs, plain weights, {about} per step: accuracy above networks trained alone",
            "-",
            margins(at_widths(long, "accuracy"), at_widths(vgg11("alone", 40), "accuracy"), 1),
            long,
            f"{run} {method} --epochs 40",
        )
    yield from _mobilenet()
    yield from _fine_tuned()
    yield from _mnist()
    yield from _lidc()


def _mobilenet() -> Iterator[list[str]]:
    alone, own = (
        rows_of("bn3/widths.jsonl", network="mobilenet_v2", method=name) for name in ("alone", "nested_plain")
    )
    ours = margins(at_widths(own, "accuracy"), at_widths(alone, "accuracy"), 1)
    what = "MobileNetV2, CIFAR-10, 4 epochs, plain weights: accuracy above networks trained alone"
    yield line(what, "about equal", ours, own, "bn3/widths.py run nested_plain --network mobilenet_v2 --epochs 4")


def _fine_tuned() -> Iterator[list[str]]:
    (whole,) = rows_of("bn3/pretrained.jsonl", method="as it comes")
    before = f"{whole['rows']['1.0']['accuracy']:.2f} %, ECE {whole['rows']['1.0']['ece']:.1f} % as it comes"
    for method in ("plain", "bayesian"):
        rows = [row for row in rows_of("bn3/pretrained.jsonl", method=method, epochs=10) if not row["changes"]]
        for key, digits in (("accuracy", 2), ("ece", 1)):
            name = "accuracy" if key == "accuracy" else "ECE"
            what = f"ResNet-20, pretrained ({before}), 10 epochs, {method} weights: {name} %"
            command = f"bn3/pretrained.py run {method}"
            yield line(what, "not in the paper", over_widths(rows, key, digits), rows, command)


def _mnist() -> Iterator[list[str]]:
    ours, theirs = (rows_of("bn3/mnist.jsonl", method=name, changes={}) for name in ("bn3", "fn3"))
    for key in ("accuracy", "ece", "aupr"):
        means = [
            [100 * statistics.mean(row["rows"][width][key] for row in rows) for width in ("4", "8", "16", "32")]
            for rows in (ours, theirs)
        ]
        what = f"MLP, MNIST, at 4, 8, 16, 32 of 32 blocks: {key.upper() if key != 'accuracy' else key} above FN3"
        yield line(what, "not in the paper", margins(means[0], means[1], 2), ours, "bn3/mnist.py run bn3")


def _lidc() -> Iterator[list[str]]:
    for (method,), rows in grouped(read(HERE / "bn3/lidc.jsonl"), "method").items():
        widest = [[row["rows"]["1.0"][f"ged_{number}"] for row in rows] for number in (1, 4, 8, 16)]
        ours = ", ".join(spread(column, 3) for column in widest)
        what = f"U-Net, LIDC, {method}: GED with 1, 4, 8, 16 samples"
        yield line(what, "a curve", ours, rows, f"bn3/lidc.py run {method}")


def fn3() -> Iterator[list[str]]:
    for method, paper in {"fn3": "little until about 65 %", "plain random": "-"}.items():
        rows = rows_of("fn3/neurons.jsonl", method=method)
        pairs = [[_at_share(row, share) for row in rows] for share in (0.0, 0.65)]
        ours = ", ".join(spread(column, 2) for column in pairs)
        what = f"MLP, MNIST, {method}: accuracy %, whole and without 65 % of the neurons"
        yield line(what, paper, ours, rows, f"fn3/neurons.py run {shlex.quote(method)}")
    for method, paper in {"nested bits": "94.28, 94.20, 94.20, 93.64", "adabits": "91.84, 79.30, -, 58.98"}.items():
        rows = [row for row in rows_of("fn3/cifar.jsonl", method=method) if not row["changes"]]
        order = ("1.0", "0.75", "0.5", "0.25") if method == "nested bits" else ("1.0", "0.75", "", "0.5")
        cells = [[100 * row["rows"][width]["accuracy"] for row in rows] if width else [] for width in order]
        ours = ", ".join(spread(cell, 2) if cell else "-" for cell in cells)
        what = f"CIFAR-10, {method}: accuracy % with 4 bits, 3 (±4), 3 (±2), 2"
        yield line(what, paper, ours, rows, f"fn3/cifar.py run {shlex.quote(method)}")
    for method in ("nested", "us_net", "slimmable"):
        rows = [row for row in rows_of("fn3/cifar.jsonl", method=method) if not row["changes"]]
        cells = [[100 * row["rows"][width]["accuracy"] for row in rows] for width in WIDTHS]
        what = f"VGG11, CIFAR-10, some minutes, {method}: accuracy % at 25, 50, 75, 100 %"
        yield line(
            what, "-", ", ".join(spread(cell, 1) for cell in cells), rows, f"fn3/cifar.py run {shlex.quote(method)}"
        )
    paths = rows_of("fn3/kinds.jsonl", kind="path")
    ours = str(paths[0]["cuts scored"])
    yield line("Cuts that the search of 72 paths scores", "1,672", ours, paths, "fn3/kinds.py run path")


def _at_share(row: Row, share: float) -> float:
    return float(min(point for point in row["points"] if point[0] >= share - 1e-9)[1])


def sparse_vd() -> Iterator[list[str]]:
    papers = {
        ("lenet_300_100", "sparse_vd"): "1.92 % at 68 times",
        ("lenet_300_100", "vbd"): "1.76 % at 81 times",
        ("lenet_5_caffe", "sparse_vd"): "0.75 % at 280 times",
        ("lenet_5_caffe", "vbd"): "0.81 % at 290 times",
    }
    every = read(HERE / "sparse_vd/weights.jsonl")
    for (network, method, epochs, threshold), rows in grouped(
        every, "network", "method", "epochs", "threshold"
    ).items():
        own = [row for row in rows if row["finish_batch_size"] == rows[0]["finish_batch_size"]]
        own = [row for row in own if row.get("tune") == own[0].get("tune")]
        error, ratio = (spread([row[key] for row in own], digits) for key, digits in (("error", 2), ("compression", 0)))
        what = f"{network}, {method}, {epochs} epochs, threshold {threshold:g}"
        what += f", tuned for {own[0]['tune']}" if own[0].get("tune") else ""
        command = f"sparse_vd/weights.py run {method} {network}"
        yield line(what, papers[network, method], f"{error} % at {ratio} times", own, command)


def vbd() -> Iterator[list[str]]:
    for (width, name), rows in sorted(grouped(read(HERE / "vbd/dropout.jsonl"), "width", "name").items()):
        for schedule in ("cosine", "constant"):
            own = [row for row in rows if row.get("schedule", "cosine") == schedule]
            if own:
                what = f"MNIST, {width} units, {name}, {schedule} learning rate: error %"
                paper = f"{DROPOUT[name][str(width)]:.2f}"
                ours, command = spread([row["error"] for row in own], 2), f"vbd/dropout.py run {name} {width}"
                yield line(what, paper, ours, own, command)


def beta_bernoulli() -> Iterator[list[str]]:
    for (network, method), rows in grouped(read(HERE / "beta_bernoulli/units.jsonl"), "network", "method").items():
        kept = "-".join(
            f"{statistics.median(column):.0f}" for column in zip(*(row["kept"] for row in rows), strict=True)
        )
        macs = statistics.median(row["macs"][0] / row["macs"][1] for row in rows)
        faster = statistics.median(row["times_faster"]["torch_64"] for row in rows)
        ours = f"{spread([row['error'] for row in rows], 2)} %, {kept}, {macs:.1f} times; {faster:.1f} in time"
        command = f"beta_bernoulli/units.py run {method} {network}"
        yield line(f"{network}, {method}: error, kept, MACs", units.PAPERS[network, method], ours, rows, command)


def readme() -> str:
    """Accuracy, calibration error and detection of three ways to have four widths."""
    ways = {
        "four plain networks, each trained alone": "alone",
        "one nested network, plain weights": "nested_plain",
        "one nested network, Bayesian weights": "nested, 16 epochs",
    }
    lines = []
    for label, method in ways.items():
        columns = zip(*(at_widths(vgg11(method), key) for key in ("accuracy", "ece", "aupr")), strict=True)
        lines.append([label, *(" / ".join(f"{value:.1f}" for value in column) for column in columns)])
    return markdown(["", "25 %", "50 %", "75 %", "100 %"], lines)


PAPERS: dict[str, Callable[[], Iterator[list[str]]]] = {
    own.__name__: own for own in (bn3, fn3, sparse_vd, vbd, beta_bernoulli)
}


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in (*PAPERS, "readme"):
        sys.exit(f"usage: python experiments/summary.py {'|'.join(PAPERS)}|readme")
    print(readme() if sys.argv[1] == "readme" else markdown(HEAD, PAPERS[sys.argv[1]]()))


if __name__ == "__main__":
    main()
