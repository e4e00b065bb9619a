"""The test images that a network is most and least certain of, with its answers."""

import base64
import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nestling.data import Batches
from nestling.markup import Html, element, html_table
from nestling.report.page.measuring import Answers, Measured, Sample
from nestling.report.page.parts import empty, figure

NUM_IMAGES = 8
_LARGEST = 96
"""No picture has a side of more pixels."""
_TOP = 3
UNKNOWN = "unknown to it"
"""The truth about an out-of-distribution example."""


def examples_figure(sample: Sample | None, measured: Measured | None) -> Html:
    """Rows of images: the least and the most certain of the test data, and the most certain of unknown data."""
    title = "What is it most and least sure of?"
    about = "Answers of the whole network. Bars are its three likeliest classes."
    if sample is None or measured is None:
        return figure(title, about, empty("No data was at hand when this page was made."), class_="wide")
    if measured.known.log_probs is None or not sample.classes:
        return figure(title, about, empty("Only answers that are one class per example are shown here."), class_="wide")
    rows = [
        _row("Least certain", sample.known, measured.known, sample, descending=True),
        _row("Most certain", sample.known, measured.known, sample, descending=False),
    ]
    if sample.foreign is not None and measured.foreign is not None:
        name = f"Most certain, of {sample.foreign_name}"
        rows.append(_row(name, sample.foreign, measured.foreign, sample, descending=False))
    return figure(title, about, *rows, class_="wide")


def _row(title: str, batches: Batches, answers: Answers, sample: Sample, *, descending: bool) -> Html:
    places = answers.uncertainty.argsort(descending=descending, stable=True)[:NUM_IMAGES].tolist()
    inputs = batches.split.inputs
    if inputs.ndim == 4 and inputs.shape[1] in (1, 3):
        cards = [_card(place, inputs[place], answers, sample) for place in places]
        return element("div", element("h4", title), element("ul", cards, class_="images"))
    rows = [[str(place), *_words(place, answers, sample)] for place in places]
    return element(
        "div", element("h4", title), html_table(["example", "answer", "probability", "truth"], rows, names=2)
    )


def _card(place: int, pixels: Tensor, answers: Answers, sample: Sample) -> Html:
    answer, probability, truth = _words(place, answers, sample)
    assert answers.log_probs is not None
    likeliest = answers.log_probs[place].exp().topk(min(_TOP, len(sample.classes)))
    bars = [
        element(
            "li",
            element("span", _name(sample.classes, int(label)), class_="name"),
            element("span", element("span", style=f"width:{100 * float(share):.1f}%"), class_="small-bar"),
        )
        for share, label in zip(likeliest.values, likeliest.indices, strict=True)
    ]
    words = f"says {answer} with {probability}; {truth}"
    picture = element("img", src=_as_png(pixels), alt=f"example {place}: {words}", width=96, height=96)
    sign, look = {"right": ("✓", "right"), UNKNOWN: ("?", "foreign")}.get(truth, ("✗", "wrong"))
    verdict = element("span", f"{sign} {truth}", class_=look)
    said = element("p", element("strong", answer), f" {probability}", element("br"), verdict)
    return element("li", picture, said, element("ul", bars, class_="likeliest", aria_hidden="true"), class_="image")


def _words(place: int, answers: Answers, sample: Sample) -> tuple[str, str, str]:
    """The answer, its probability, and what is true."""
    assert answers.log_probs is not None
    label = int(answers.log_probs[place].argmax())
    probability = f"{float(answers.log_probs[place].max().exp()):.0%}"
    answer = _name(sample.classes, label)
    if answers.right is None:
        return answer, probability, UNKNOWN
    truth = int(sample.known.split.targets[place])
    return answer, probability, "right" if truth == label else f"is {_name(sample.classes, truth)}"


def _name(classes: Sequence[str], label: int) -> str:
    return classes[label] if 0 <= label < len(classes) else str(label)


def _as_png(pixels: Tensor) -> str:
    """An image (C, H, W) as the address of a small picture; values that are no bytes are spread over their range."""
    values = pixels.float()
    if pixels.dtype != torch.uint8:
        low, high = values.min(), values.max()
        values = 255 * (values - low) / (high - low).clamp_min(1e-12)
    array = values.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    image = Image.fromarray(np.ascontiguousarray(array[:, :, 0] if array.shape[2] == 1 else array))
    image.thumbnail((_LARGEST, _LARGEST))
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
