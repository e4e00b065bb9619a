"""Pictures of how quality changes with size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from nestling.storage import write_whole
from nestling.tables import thousands

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#1b6ca8", "#d1495b", "#66717a", "#3c8d5a", "#8a5aa8")
_MARKERS = ("o", "s", "^", "D", "v")


@dataclass(frozen=True)
class Series:
    """One line in every panel of ``draw_curves``.

    Attributes:
        label: What the legend says.
        sizes: The places on the axis of sizes, all above zero.
        values: The values at these sizes, by the name of the panel.

    Examples:
        >>> from nestling.report import Series
        >>> Series("nested", [1e3, 4e3], {"accuracy %": [88.0, 91.5]}).label
        'nested'
    """

    label: str
    sizes: Sequence[float]
    values: Mapping[str, Sequence[float]]


def draw_curves(path: Path, series: Sequence[Series], panels: Sequence[str], *, size: str, title: str) -> None:
    """Draw one panel per quantity, over sizes on a logarithmic axis, and write the picture whole or not at all.

    Args:
        path: Where to write; the suffix is the format.
        series: The lines, each with values for every panel.
        panels: The names of the quantities.
        size: What the axis of sizes says.
        title: What stands above.

    Raises:
        RunError: If nothing can be written there.

    Examples:
        >>> from pathlib import Path
        >>> from nestling.report import Series, draw_curves
        >>> line = Series("nested", [1e3, 4e3], {"accuracy %": [88.0, 91.5]})
        >>> draw_curves(Path("sizes.svg"), [line], ["accuracy %"], size="parameters", title="Digits")
    """
    figure = new_figure(4.2 * len(panels), 3.6)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, line in enumerate(series):
            look = {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}
            axes.plot(line.sizes, line.values[panel], label=line.label, markersize=5, linewidth=1.6, **look)
        axes.set_xscale("log")
        ticks = sorted({place for line in series for place in line.sizes})
        axes.set_xticks(ticks, labels=[thousands(round(place)) for place in ticks])
        axes.set_xticks([], minor=True)
        axes.set_xlabel(size)
        axes.set_title(panel, fontsize=11)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=12)
    write_figure(path, figure)


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of a size in inches, without a window."""
    from matplotlib.backends.backend_agg import (
        FigureCanvasAgg,
    )  # imported here, since it takes long and few commands draw
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_figure(path: Path, figure: "Figure") -> None:
    """Write a figure in the format of the path's suffix, whole or not at all."""
    picture = BytesIO()
    figure.savefig(picture, format=path.suffix.lstrip(".") or "png", dpi=120)
    write_whole(path, picture.getvalue())
