"""The layers of a network, and how much of each its networks keep."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from nestling.markup import Html, element
from nestling.reading import Cut
from nestling.report.page.parts import figure, following
from nestling.running import Nested
from nestling.running.layers import plain_name

_MOST_ROWS = 16
"""A table of more layers than this can be scrolled by itself."""
_WEIGHT = ".weight"
_BY_SECOND_AXIS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Embedding, nn.EmbeddingBag)
"""Layers whose outputs lie along the second axis of their weight."""


@dataclass(frozen=True)
class Layer:
    """A layer with the number of its outputs, and how many of them each of some networks keeps."""

    name: str
    kept: tuple[int, ...]
    total: int

    @property
    def is_whole(self) -> bool:
        """Whether every network keeps all of it."""
        return all(kept == self.total for kept in self.kept)


def layers_at(nested: Nested, cuts: Sequence[Cut]) -> list[Layer]:
    """Each layer with a weight matrix or kernel, in the order of the network, with what it keeps at each cut."""
    modules = dict(nested.module.named_modules())
    smaller = [(nested.sliced_at(cut), nested.dropped(cut)) for cut in cuts]
    layers = []
    for name, tensor in nested.tensors().items():
        plain = plain_name(name)
        if not plain.endswith(_WEIGHT) or tensor.ndim < 2:
            continue
        path = plain.removesuffix(_WEIGHT)
        axis = 1 if isinstance(modules.get(path), _BY_SECOND_AXIS) else 0
        kept = tuple(0 if plain in gone else tensors.get(name, tensor).shape[axis] for tensors, gone in smaller)
        layers.append(Layer(path, kept, tensor.shape[axis]))
    return layers


def layers_figure(rows: Sequence[tuple[str, int, int, str]], unit: str, *below: Html, numbered: bool) -> Html:
    """Layers as bars that are filled as far as they are kept, in a table.

    A row is (name, kept, total, remark). ``numbered`` bars follow the chosen network.
    """
    most = max((total for _, _, total, _ in rows), default=1)
    lines = []
    for number, (name, kept, total, remark) in enumerate(rows):
        fill = element("span", class_="fill", style=f"width:{100 * kept / total:.1f}%")
        track = element(
            "span", fill, class_="track", aria_hidden="true", style=f"width:{100 * (total / most) ** 0.5:.1f}%"
        )
        words = kept_words(kept, total)
        count = following(f"layer-{number}", words) if numbered else words
        note = element("span", remark, class_="note") if remark else ""
        bar = element("td", element("div", track, note), class_="bar")
        cells = element("th", name, scope="row"), element("td", count, class_="number"), bar
        lines.append(element("tr", *cells, data_layer=str(number) if numbered else None))
    heads = ("layer", None), (f"{unit} kept", "number"), ("", None)
    head = element("tr", *(element("th", words, scope="col", class_=look) for words, look in heads))
    table = element("table", element("thead", head), element("tbody", lines), class_="layers")
    look = "scrolled tall" if len(rows) > _MOST_ROWS else "scrolled"
    about = f"Each bar is a layer; its length grows with the square root of its {unit}. What is kept is filled."
    title = "What is left of each layer"
    scrolled = element("div", table, class_=look, tabindex="0", role="region", aria_label=title)
    return figure(title, about, scrolled, *below, class_="wide")


def kept_words(kept: int, total: int) -> str:
    """How much of a layer is kept."""
    return f"{kept:,} of {total:,}"
