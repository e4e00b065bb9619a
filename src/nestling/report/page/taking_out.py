"""The section on delivery: the commands and the lines of Python that take the chosen network out of the run."""

from pathlib import Path

from nestling.markup import Html, element, html
from nestling.report.page.networks import Choice, Network
from nestling.report.page.parts import code, following, section


def out_section(folder: Path, words: str, choice: Choice) -> Html:
    """How to get the chosen network out; ``words`` name the run in a command."""
    first = commands_of(choice.networks[choice.first], folder, words)
    steps = [
        element("li", element("h3", title), element("p", about), code(following(key, first[key])))
        for key, title, about in _STEPS
    ]
    answer = html(
        "One command writes the chosen network to a folder: ", following("extract-inline", first["extract"], "code")
    )
    return section("out", "How do I get it out?", answer, element("ol", steps, class_="steps"))


def commands_of(network: Network, folder: Path, words: str) -> dict[str, str]:
    """What to write for a network, by the key of each step."""
    small = folder / f"small-{network.cost.params}"
    cut = ", ".join(f"{name!r}: {width}" for name, width in network.cut.widths)
    return {
        "extract": f"nestling extract {words} {network.taken_by}",
        "run-small": f"import torch\n\nnetwork = torch.export.load({str(small / 'network.pt2')!r}).module()\noutputs = network(inputs)",
        "in-python": (
            f"import nestling as nl\n\nrun = nl.open_run({str(folder)!r})\ncut = {{{cut}}}\n"
            "answers = nl.predict(run.nested, inputs, cut=cut)  # probabilities and uncertainty\n"
            "small = nl.extract(run.nested, cut)  # a plain module"
        ),
    }


_STEPS = (
    ("extract", "Write it to a folder", "A plain network, smaller, checked against the nested one."),
    ("run-small", "Run it with torch alone", "No nestling needed; any batch size."),
    ("in-python", "Or use it in Python", "The same network while it is part of the run, with its uncertainty."),
)
