"""Draws the pictures of docs/results.md and of the README from the rows.

python experiments/pictures.py
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).parent))
from rows import grouped, read
from summary import DROPOUT, WIDTHS, rows_of, vgg11

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"
BLUE, RED, GREEN, VIOLET, GREY = "#1b6ca8", "#d1495b", "#3c8d5a", "#8a5aa8", "#6b7280"
WAYS = {
    "alone": ("four networks, each alone", GREY, "o"),
    "nested_plain": ("one nested network", BLUE, "s"),
    "nested, 16 epochs": ("nested, Bayesian weights", GREEN, "^"),
    "fn3": ("FN3 as published", RED, "v"),
}
SHARES = [100 * float(width) for width in WIDTHS]
LABELS = {"accuracy": "accuracy, %", "ece": "calibration error, %", "aupr": "AUPR against SVHN, %"}


def picture(panels: int, width: float = 9.6, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for own in axes:
        own.grid(alpha=0.25)
        own.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def saved(figure: Figure, name: str) -> None:
    """As SVG, the same for the same rows."""
    with mpl.rc_context({"svg.hashsalt": "nestling"}):
        figure.savefig(IMAGES / name, metadata={"Date": None}, facecolor="white")
    print(f"docs/images/{name}")


def banded(axes: Axes, x: Sequence[float], columns: Sequence[Sequence[float]], look: tuple[str, str, str]) -> None:
    """Means over seeds, within two standard deviations where there are several."""
    label, colour, marker = look
    means = [statistics.mean(column) for column in columns]
    axes.plot(x, means, color=colour, marker=marker, markersize=4, linewidth=1.4, label=label)
    if all(len(column) > 1 for column in columns):
        around = [2 * statistics.stdev(column) for column in columns]
        low, high = ([m + sign * a for m, a in zip(means, around, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)


def widths_panel(axes: Axes, key: str) -> None:
    for method, look in WAYS.items():
        columns = [[row["rows"][width][key] for row in vgg11(method) if width in row["rows"]] for width in WIDTHS]
        banded(axes, SHARES, columns, look)
    axes.set_xlabel("channels kept, %")
    axes.set_ylabel(LABELS[key])
    axes.set_xticks(SHARES)


def widths() -> None:
    """BN3's figure 5: accuracy, calibration and detection at four widths."""
    figure, axes = picture(3)
    for own, key in zip(axes, LABELS, strict=True):
        widths_panel(own, key)
    axes[0].legend(frameon=False, fontsize=8)
    saved(figure, "results-widths.svg")


def lidc_panel(axes: Axes) -> None:
    """GED against the number of samples, at full width."""
    looks = {"bn3": (GREEN, "^"), "dropout": (RED, "v"), "ensemble": (GREY, "o"), "probabilistic": (VIOLET, "D")}
    looks |= {"nested_plain": (BLUE, "s"), "fn3": ("#c98a1b", "x")}
    names = {"bn3": "BN3", "fn3": "FN3", "ensemble": "ensemble of four", "nested_plain": "nested, plain"}
    for (method,), rows in grouped(read(HERE / "bn3/lidc.jsonl"), "method").items():
        columns = [[row["rows"]["1.0"][f"ged_{number}"] for row in rows] for number in (1, 4, 8, 16)]
        banded(axes, (1, 4, 8, 16), columns, (names.get(method, method), *looks[method]))
    axes.set_xlabel("samples")
    axes.set_ylabel("GED, lower is better")
    axes.set_xticks((1, 4, 8, 16))
    axes.legend(frameon=False, fontsize=8)


def lidc() -> None:
    """BN3's figure 7: GED by samples for all methods, and by width for BN3."""
    figure, (left, right) = picture(2, 7.6)
    lidc_panel(left)
    rows = rows_of("bn3/lidc.jsonl", method="bn3")
    cuts = list(rows[0]["rows"])
    for number, colour in zip((1, 4, 8, 16), ("#a7d3b5", "#79b98e", GREEN, "#1f5c38"), strict=True):
        columns = [[row["rows"][cut][f"ged_{number}"] for row in rows] for cut in cuts]
        label = f"{number} sample{'s' * (number > 1)}"
        banded(right, [100 * float(cut) for cut in cuts], columns, (label, colour, "o"))
    right.set_xlabel("channels kept by BN3, %")
    right.set_ylabel("GED")
    right.legend(frameon=False, fontsize=8)
    saved(figure, "results-lidc.svg")


def neurons_panel(axes: Axes) -> None:
    for method, (label, colour) in {"fn3": ("nested (FN3)", BLUE), "plain random": ("plain", RED)}.items():
        for number, row in enumerate(rows_of("fn3/neurons.jsonl", method=method)):
            removed, accuracy = zip(*sorted(row["points"]), strict=True)
            own = label if not number else None
            axes.plot([100 * share for share in removed], accuracy, color=colour, linewidth=1.2, label=own)
    axes.set_ylim(bottom=80)
    axes.set_xlabel("neurons removed, %")
    axes.set_ylabel("accuracy on MNIST, %")
    axes.legend(frameon=False, fontsize=8)


def dropout() -> None:
    """VBD's table: the paper's errors and ours, at two widths."""
    figure, axes = picture(2, 8.4)
    rows = [row for row in read(HERE / "vbd/dropout.jsonl") if row.get("schedule", "cosine") == "cosine"]
    for own, width in zip(axes, (340, 820), strict=True):
        for place, name in enumerate(DROPOUT):
            errors = [row["error"] for row in rows if row["name"] == name and row["width"] == width]
            own.plot([DROPOUT[name][str(width)]], [place], "D", color=GREY, label="paper" if not place else None)
            own.plot(errors, [place] * len(errors), "o", color=BLUE, alpha=0.7, label="ours" if not place else None)
        own.set_yticks(range(len(DROPOUT)), [name.replace("_", " ") for name in DROPOUT] if own is axes[0] else [])
        own.set_xlabel(f"error on MNIST, %, {width} units per layer")
        own.invert_yaxis()
    axes[0].legend(frameon=False, fontsize=8)
    saved(figure, "results-dropout.svg")


def weights_panel(axes: Axes, network: str = "lenet_300_100") -> None:
    """Errors against how many times fewer weights are left, beside the papers' points."""
    papers = {"vbd": (81, 1.76), "sparse_vd": (68, 1.92)}
    for (method,), rows in grouped(rows_of("sparse_vd/weights.jsonl", network=network), "method").items():
        colour = GREEN if method == "vbd" else VIOLET
        name = method.replace("_", " ")
        for number, row in enumerate(own for own in rows if own["threshold"] == 0.5 and own["epochs"] == 150):
            label = name if not number else None
            axes.plot([row["compression"]], [row["error"]], "o", color=colour, label=label)
        axes.plot(*([own] for own in papers[method]), "D", color=colour, mfc="none", label=f"{name}, paper")
    axes.set_xlabel("times fewer weights, LeNet-300-100")
    axes.set_ylabel("error on MNIST, %")
    axes.legend(frameon=False, fontsize=8)


def pruned() -> None:
    """Weights and units that Bayesian dropout removes."""
    figure, (left, right) = picture(2, 8.4)
    weights_panel(left)
    looks = {"vbd": (GREEN, "o"), "beta_bernoulli": (BLUE, "s"), "log_normal": (VIOLET, "^")}
    looks |= {"dependent_beta_bernoulli": (RED, "v")}
    for row in read(HERE / "beta_bernoulli/units.jsonl"):
        colour, marker = looks[row["method"]]
        is_first = row["network"] == "lenet_500_300"
        label = row["method"].replace("_", " ") if is_first and row["seed"] == 0 else None
        fill = colour if is_first else "none"
        x = row["macs"][0] / row["macs"][1]
        right.plot([x], [row["error"]], marker, color=colour, mfc=fill, label=label, linestyle="none")
    right.set_xlabel("times fewer multiply-adds")
    right.set_ylabel("error on MNIST, %")
    right.legend(frameon=False, fontsize=8)
    saved(figure, "results-pruned.svg")


def strongest() -> None:
    """What the README shows: every width of one run, neurons removed, weights removed."""
    figure, (left, middle, right) = picture(3, 10.2)
    widths_panel(left, "accuracy")
    left.set_ylabel("accuracy on CIFAR-10, %")
    left.legend(frameon=False, fontsize=7)
    neurons_panel(middle)
    weights_panel(right)
    saved(figure, "results-strongest.svg")


def main() -> None:
    for draw in (widths, lidc, dropout, pruned, strongest):
        draw()


if __name__ == "__main__":
    main()
