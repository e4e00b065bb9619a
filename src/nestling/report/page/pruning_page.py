"""The page of a pruning: what went, what is left of each layer, and how sure the pruned network is."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nestling.delivery import ABOUT_FILE
from nestling.errors import NestlingError, RunError
from nestling.markup import Html, element, html, html_table
from nestling.pruning import PRUNED_FILE, LayerReport
from nestling.report.page.certainty import RELIABILITY, reliability
from nestling.report.page.document import document, summary
from nestling.report.page.layers import layers_figure
from nestling.report.page.learned import by_width, training_figures
from nestling.report.page.metrics import ECE, NLL, QUALITIES, SIZES, Metric, is_number, quality_of
from nestling.report.page.origin import mapping, origin_section
from nestling.report.page.parts import code, empty, figure, section, tile
from nestling.report.page.tradeoff import OtherNetworks
from nestling.running import Cost
from nestling.storage import GRAPH_FILE, read_json
from nestling.training import RECIPE_FILE, Recipe, log_of

STAGES = ("pretrain", "prune", "dependent")
"""The folders of the stages of a pruning, each of them a run."""


@dataclass(frozen=True)
class PruningRecord:
    """What ``nestling prune`` wrote to a folder: its method, costs before and after, layers, and test scores."""

    folder: Path
    method: str
    structure: str
    threshold: float
    before: Cost
    after: Cost
    layers: Sequence[LayerReport]
    scores: Mapping[str, Any]
    left: Mapping[str, str]
    logs: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "PruningRecord":
        """The record in a folder, with the logs of its stages."""
        path = folder / ABOUT_FILE
        saved = read_json(path)
        try:
            layers = [
                LayerReport(str(layer["name"]), int(layer["kept"]), int(layer["total"])) for layer in saved["layers"]
            ]
            if not all(layer.total > 0 for layer in layers) or not isinstance(saved["test"], dict):
                raise ValueError("a layer without weights, or no scores")
            before, after = (_cost(saved[key]) for key in ("before", "after"))
            about = str(saved["method"]), str(saved["structure"]), float(saved["threshold"])
            left = {str(name): str(reason) for name, reason in saved["left"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(path, f"is not the record of a pruning ({error!r})", "Prune again.") from None
        stages = [stage for stage in STAGES if (folder / stage / RECIPE_FILE).exists()]
        logs = {stage: log_of(folder / stage) for stage in stages}
        record = read_json(folder / stages[-1] / RECIPE_FILE) if stages else {}
        return cls(folder, *about, before, after, layers, saved["test"], left, logs, record)

    @property
    def data(self) -> Mapping[str, Any]:
        """What is on record of the data."""
        return mapping(self.record.get("data"))

    @property
    def series(self) -> OtherNetworks:
        """The pruned network as a point on the axes of a run."""
        where = self.data.get("name") or "data of yours"
        label = f"{self.folder.resolve().name} (pruned by {self.method}, scored on {where})"
        return OtherNetworks(label, [(self.after, dict(self.scores))])


def is_pruning(folder: Path) -> bool:
    """Whether a folder is of a pruning, and not of a run."""
    return (folder / ABOUT_FILE).exists() and not (folder / RECIPE_FILE).exists()


def pruning_page(record: PruningRecord, made_here: str) -> str:
    """The page as text."""
    metric = quality_of(record.scores)
    small, sure = _small_answer(record), _sure_answer(record, metric)
    cards = [
        ("size", "How small did it get?", small),
        ("sure", "How sure is it?", sure),
        ("learned", "How did it get there?", _learned_answer(record)),
        ("out", "How do I get it out?", _out_answer(record)),
    ]
    curve = reliability("reliability", record.scores, None)
    sections = [
        section("size", "How small did it get?", small, _tiles(record, metric), _layers(record)),
        section(
            "sure",
            "How sure is it?",
            sure,
            element(
                "div", figure("Is it as often right as it says?", RELIABILITY, curve), _scores(record), class_="columns"
            ),
        ),
        section("learned", "How did it get there?", _learned_answer(record), *_training(record)),
        section(
            "out", "How do I get it out?", "The pruned network is a file that torch runs by itself.", *_commands(record)
        ),
        _origin(record, made_here),
    ]
    subtitle = f"{record.method} · {record.structure} · threshold {record.threshold:g}"
    return document(record.folder.resolve().name, subtitle, [summary(cards), *sections], {})


def _small_answer(record: PruningRecord) -> str:
    kept, total = (sum(getattr(layer, key) for layer in record.layers) for key in ("kept", "total"))
    times = record.before.bytes / max(1, record.after.bytes)
    return (
        f"{times:.1f} times smaller as a file: {kept:,} of {total:,} {record.structure} are left ({kept / total:.1%})."
    )


def _sure_answer(record: PruningRecord, metric: Metric) -> str:
    words = f"On test data it has {metric.name} {metric.written(metric.of(record.scores))}"
    ece = ECE.of(record.scores)
    return f"{words}; confidence is off by {ECE.written(ece)} on average." if ece is not None else f"{words}."


def _out_answer(record: PruningRecord) -> Html:
    """The command, or the line of Python, that takes the network out of its folder."""
    lines = [line for text in _programs(record) for line in text.splitlines()]
    command = next((line for line in lines if line.startswith("nestling export")), None)
    if command is not None:
        return html("One command writes it to a file: ", element("code", command))
    load = next((line for line in lines if "load_" in line), None)
    return html("The folder has neither its graph nor its weights." if load is None else element("code", load))


def _learned_answer(record: PruningRecord) -> str:
    said = []
    for stage, log in record.logs.items():
        lines, metric = by_width(log)
        ends = [own[-1][1] for own in lines.values()]
        reached = f", to a validation {metric.name} of {metric.written(ends[-1])}" if ends else ""
        said.append(f"{stage}: {len(log)} epoch{'' if len(log) == 1 else 's'}{reached}")
    return f"Stages: {'; '.join(said)}." if said else "The folder has no logs of its stages."


def _tiles(record: PruningRecord, metric: Metric) -> Html:
    figures = [
        (size.name, size.written(size.of(record.after)), f"of {size.written(size.of(record.before))}") for size in SIZES
    ]
    for score in dict.fromkeys((metric, ECE, NLL)):
        figures.append((score.name, score.written(score.of(record.scores)), score.between(record.scores)))
    return element("dl", [tile(*entry) for entry in figures], class_="tiles")


def _scores(record: PruningRecord) -> Html:
    """The scores as a table."""
    rows = []
    for score in (*QUALITIES, ECE):
        value = score.of(record.scores)
        if value is not None:
            rows.append([score.name, score.written(value), score.between(record.scores) or "-"])
    count = record.scores.get("count")
    about = f"Over {count:,} test examples." if isinstance(count, int) else "Over the test examples."
    return figure("Scores", about, html_table(["score", "value", "95% interval"], rows))


def _layers(record: PruningRecord) -> Html:
    rows = [(own.name, own.kept, own.total, f"{own.kept / own.total:.1%}") for own in record.layers]
    not_cut = "not pruned" if record.structure == "units" else "no whole unit was removed"
    left = html_table([not_cut, "why"], [list(item) for item in record.left.items()], names=2) if record.left else ""
    return layers_figure(rows, record.structure, Html(left), numbered=False)


def _training(record: PruningRecord) -> list[Html]:
    if not record.logs:
        return [empty("No stage of the pruning left a log.")]
    parts = []
    for stage, log in record.logs.items():
        parts += [
            element("h3", f"Stage: {stage}"),
            element("div", training_figures(log, prefix=stage), class_="columns"),
        ]
    return parts


def _commands(record: PruningRecord) -> list[Html]:
    programs = [code(text) for text in _programs(record)]
    return programs or [empty("The folder has neither the graph nor the weights.")]


def _programs(record: PruningRecord) -> list[str]:
    """The commands and the lines of Python for what is in the folder."""
    graph, weights = record.folder / GRAPH_FILE, record.folder / PRUNED_FILE
    lines = []
    if graph.exists():
        load = f"import nestling as nl\n\nsmall = nl.load_small({str(record.folder)!r})"
        lines.append(f"{load}\nanswers = small.predict(inputs)  # as they are in files: normalised inside")
        lines.append(f"nestling export {shlex.quote(str(record.folder))} --to onnx")
    if weights.exists():
        lines.append(
            f"import nestling as nl\n\nnetwork = nl.load_pruned({str(weights)!r}, module)  # module: as before pruning"
        )
    return lines


def _origin(record: PruningRecord, made_here: str) -> Html:
    try:
        recipe = Recipe.from_dict(record.record.get("recipe"))
    except NestlingError:
        return section("origin", "Where does it come from?", "The folder has no recipe.", code(made_here))
    return origin_section(record.record, recipe, (), made_here)


def _cost(saved: Mapping[str, Any]) -> Cost:
    params, macs, size, latency = (saved[key] for key in ("params", "macs", "bytes", "latency_ms"))
    if not all(map(is_number, (params, macs, size))) or not (latency is None or is_number(latency)):
        raise ValueError("a cost that is no number")
    return Cost(int(params), int(macs), int(size), latency)
