"""The page of one run: its networks with a slider over them, and answers to what a user asks of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nestling.markup import Html
from nestling.report.page.certainty import certainty_section, sure_answer
from nestling.report.page.document import document, summary
from nestling.report.page.examples import examples_figure
from nestling.report.page.layers import Layer, layers_at
from nestling.report.page.learned import learned_answer, learned_section
from nestling.report.page.measuring import Sample
from nestling.report.page.networks import Choice, Network
from nestling.report.page.origin import mapping, origin_section
from nestling.report.page.slider import slider
from nestling.report.page.taking_out import commands_of, out_answer, out_section
from nestling.report.page.tradeoff import OtherNetworks, small_answer, tiles, tradeoff_section
from nestling.training import Run


@dataclass(frozen=True)
class Report:
    """What a page says of a run: ``record`` is its recipe.json, ``words`` name it in a command, ``source`` says where
    the scores come from, ``notes`` what is missing and why, ``made_here`` how the page is made again."""

    run: Run
    folder: Path
    record: Mapping[str, Any]
    words: str
    choice: Choice
    sample: Sample | None
    source: str
    made_here: str
    notes: tuple[str, ...] = ()
    others: Sequence[OtherNetworks] = field(default_factory=tuple)

    @property
    def title(self) -> str:
        """The name of the run."""
        return self.folder.resolve().name

    @property
    def subtitle(self) -> str:
        """Data, network and length of the run."""
        name = mapping(mapping(self.record.get("network")).get("model")).get("name")
        data = self.run.data.get("name") or "data of yours"
        epochs = f"{len(self.run.log)} epoch{'' if len(self.run.log) == 1 else 's'}"
        return f"{data} · {name or 'a network of yours'} · {self.run.likelihood} · {epochs}"


def run_page(report: Report) -> str:
    """The page as text."""
    choice, run = report.choice, report.run
    layers = layers_at(run.nested, [network.cut for network in choice.networks])
    foreign = "" if report.sample is None else report.sample.foreign_name
    largest = choice.networks[-1]
    sure = certainty_section(choice, foreign)
    sections = [
        tradeoff_section(choice, layers, report.others, report.source),
        sure,
        examples_figure(report.sample, largest.measured),
        learned_section(run.nested, run.log, choice),
        out_section(report.folder, report.words, choice),
        origin_section(report.record, run.recipe, report.notes, report.made_here),
    ]
    cards = [
        ("size", "How small can I go?", small_answer(choice)),
        ("sure", "How sure is it?", sure_answer(choice)),
        ("learned", "What did it learn?", learned_answer(run.nested, run.log)),
        ("out", "How do I get it out?", out_answer(report.folder, report.words, choice)),
    ]
    data = {
        "first": choice.first,
        "networks": [_followed(report, network, number, layers) for number, network in enumerate(choice.networks)],
    }
    return document(report.title, report.subtitle, [summary(cards), _slider(choice), *sections], data)


def _slider(choice: Choice) -> Html:
    words = [budget_words(choice, network) for network in choice.networks]
    costs = [choice.size.written(choice.size.of(network.cost)) for network in choice.networks]
    return slider(choice.size.name, words, costs, choice.first)


def budget_words(choice: Choice, network: Network) -> str:
    """A network in words: its cost, what share of the whole that is, and its quality."""
    cost, whole = choice.size.of(network.cost), choice.size.of(choice.networks[-1].cost)
    share = f" ({cost / whole:.0%})" if cost is not None and whole else ""
    metric = choice.metric
    quality = metric.of(network.scores)
    said = "" if quality is None else f" · {metric.name} {metric.written(quality)}"
    return f"{choice.size.written(cost)}{share} · {network.name}{said}"


def _followed(report: Report, network: Network, number: int, layers: Sequence[Layer]) -> dict[str, object]:
    """What the script puts into the page when a network is chosen: words by their key, and the layers' shares."""
    words = {"budget": budget_words(report.choice, network)}
    for key, _, _, values in tiles(report.choice):
        words[key], words[f"{key}-remark"] = values[number]
    words |= commands_of(network, report.folder, report.words)
    words |= {f"layer-{place}": f"{layer.kept[number]} of {layer.total}" for place, layer in enumerate(layers)}
    return {"words": words, "layers": [round(layer.kept[number] / layer.total, 4) for layer in layers]}
