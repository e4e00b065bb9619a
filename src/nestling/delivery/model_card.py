"""The model card of a network: what it is, how it is used, and what was measured of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from nestling.errors import printable
from nestling.search import CURVE_FILE
from nestling.tables import percent, thousands
from nestling.training import SCORES_FILE

_TAGS = ("nestling", "nested", "bayesian", "uncertainty-quantification", "model-compression")
_TASKS = {"classification": "image-classification", "segmentation": "image-segmentation"}
_MEASURED = {
    "accuracy": ("accuracy %", 100.0, 2),
    "ece": ("ECE %", 100.0, 2),
    "auroc": ("OOD AUROC %", 100.0, 2),
    "nll": ("NLL", 1.0, 4),
    "rmse": ("RMSE", 1.0, 4),
    "dice": ("Dice", 1.0, 4),
}
"""The scores of the table: their names, what they are multiplied with, and their digits."""


def model_card(
    name: str, config: Mapping[str, Any], figures: Mapping[str, Any], *, picture: bool, licence: str | None
) -> str:
    """The card in Markdown, with a head that the hub reads.

    Args:
        name: its title.
        config: the content of ``config.json``.
        figures: the contents of ``scores.json`` and of ``curve.json``, those that there are.
        picture: whether ``curve.png`` lies beside it.
        licence: the identifier of a licence, or None.
    """
    parts = [_head(config, licence), f"# {_plain(name)}", _what(config), _use(config)]
    if SCORES_FILE in figures:
        parts.append(_scores(figures[SCORES_FILE]))
    if CURVE_FILE in figures:
        parts.append(_curve(figures[CURVE_FILE], picture))
    if not figures:
        parts.append("Nothing was measured yet: `nestling evaluate` and `nestling search` make the tables.")
    return "\n\n".join([*parts, _files()]) + "\n"


def _head(config: Mapping[str, Any], licence: str | None) -> str:
    data = config.get("data", {})
    task = _TASKS.get(data.get("task")) if len(data.get("input_shape", ())) == 3 else None
    lines = ["---", "library_name: nestling"]
    lines += [f"license: {_plain(licence)}"] if licence else []
    lines += [f"pipeline_tag: {task}"] if task else []
    return "\n".join([*lines, "tags:", *(f"- {tag}" for tag in _TAGS), "---"])


def _what(config: Mapping[str, Any]) -> str:
    model, data = config["model"], config.get("data", {})
    built = f"`{_plain(model['name'])}`" if model else "network"
    trained = f", trained once on {_plain(data['name'])}" if data.get("name") else ""
    text = (
        f"A {built} of {thousands(config['params'])} parameters and {thousands(config['macs'])} multiply-adds{trained}."
    )
    text += f" It is nested: the units of its groups ({len(config['groups'])}) are in order of importance, so that the"
    return f"{text} last ones can be cut off at any width, and what is left is a smaller network that works."


def _use(config: Mapping[str, Any]) -> str:
    shape = ", ".join(map(str, config.get("data", {}).get("input_shape", ()))) or "..."
    return f"""```python
from nestling.delivery import load_hub
import nestling as nl

nested = load_hub("user/name")                   # or the folder; nothing is unpickled
small = nl.extract(nested, 0.5)                  # a plain torch module, half as wide
answer = nl.predict(nested, inputs, cut=0.5)     # inputs (B, {shape}), normalised as config.json says
answer.probs, answer.epistemic
```"""


def _scores(content: Mapping[str, Any]) -> str:
    rows = [_score_cells(row) for row in content["rows"]]
    count = content["rows"][0]["scores"]["count"] if rows else 0
    text = f"## Measured\n\n{_table(rows)}\n\n± is half of the 95 % interval over {count:,} test examples"
    of = f" of {_plain(content['data'])}" if content.get("data") else ""
    ood = f"; out-of-distribution data: {_plain(content['ood'])}" if content.get("ood") else ""
    return f"{text}{of}{ood}. ms: one example, on the machine that measured."


def _score_cells(row: Mapping[str, Any]) -> dict[str, str]:
    costs, scores = row["cost"], row["scores"]
    cells = {"cut": row["cut"], "kept": percent(row["kept"]), "parameters": thousands(costs["params"])}
    cells["MACs"] = thousands(costs["macs"])
    if costs.get("latency_ms") is not None:
        cells["ms"] = f"{costs['latency_ms']:.3f}"
    for key, (name, scale, digits) in _MEASURED.items():
        if scores.get(key) is not None:
            bounds = scores.get("bounds", {}).get(key)
            half = "" if bounds is None else f" ± {scale * (bounds[1] - bounds[0]) / 2:.{digits}f}"
            cells[name] = f"{scale * scores[key]:.{digits}f}{half}"
    calibrated = row.get("calibrated")
    return cells if calibrated is None else cells | {"ECE % calibrated": f"{100 * calibrated['ece']:.2f}"}


def _curve(content: Mapping[str, Any], picture: bool) -> str:
    shares = all(0 <= row["score"] <= 1 for row in content["rows"])
    rows = []
    for row in content["rows"]:
        cells = {"kept": percent(row["kept"]), "parameters": thousands(row["params"])}
        cells |= {"MACs": thousands(row["macs"]), "bytes": thousands(row["bytes"])}
        if row["latency_ms"] is not None:
            cells["ms"] = f"{row['latency_ms']:.3g}"
        score = {"accuracy %": f"{100 * row['score']:.2f}"} if shares else {"score": f"{row['score']:.4f}"}
        rows.append(cells | score)
    shown = "\n\n![Quality over cost of all cuts that were tried](curve.png)" if picture else ""
    return f"## The best cuts\n\n{_table(rows)}\n\nOn the validation data, by {content['cost']}.{shown}"


def _files() -> str:
    return (
        "## Files\n\n`model.safetensors` has the weights, the statistics of norms at each cut, and how to build the "
        "network; `config.json` says it for readers. All of it is data: no file can run code."
    )


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """A table in Markdown, with a column per key of any row."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    lines = [header, ["---"] * len(header), *([row.get(key, "-") for key in header] for row in rows)]
    return "\n".join(f"| {' | '.join(_plain(cell) for cell in line)} |" for line in lines)


def _plain(text: object) -> str:
    """A text on one line, without what Markdown or a browser would act on."""
    line = " ".join(printable(str(text)).split())
    return "".join(f"&#{ord(c)};" if c in "|<>`[]" else c for c in line)
