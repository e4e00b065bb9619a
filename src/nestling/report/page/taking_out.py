"""The section on delivery: the commands and the lines of Python that take the chosen network out of the run."""

from pathlib import Path

from nestling.markup import Html, element, html
from nestling.report.page.networks import CUT, UNDER, Choice, Network
from nestling.report.page.parts import code, following, section
from nestling.search import CURVE_FILE


def out_section(folder: Path, words: str, choice: Choice) -> Html:
    """How to get the chosen network out; ``words`` name the run in a command."""
    first = commands_of(choice.networks[choice.first], folder, words)
    steps = [
        element("li", element("h3", title), element("p", about), code(following(key, first[key])))
        for key, title, about in _STEPS
    ]
    answer = "A plain network in a file, or a cut of the run in Python: both are of the chosen size."
    return section("out", "How do I get it out?", answer, element("ol", steps, class_="steps"))


def out_answer(folder: Path, words: str, choice: Choice) -> Html:
    """The command that writes the chosen network to a file."""
    command = commands_of(choice.networks[choice.first], folder, words)["export"]
    return html("One command writes the chosen network to a file: ", following("export", command, "code"))


def commands_of(network: Network, folder: Path, words: str) -> dict[str, str]:
    """What to write for a network, by the key of each step."""
    small = folder / f"small-{network.cost.params}"
    trusted = ", trust=True" if words.endswith(" --trust") else ""
    given = network.taken_by
    lines = ["import nestling as nl", "", f"run = nl.open_run({str(folder)!r}{trusted})"]
    if given.startswith(UNDER):
        lines[:0] = ["from pathlib import Path", ""]
        curve = f"nl.Curve.read(Path({str(folder / CURVE_FILE)!r}))"
        lines.append(f"cut = {curve}.under({given.removeprefix(UNDER)})")
    else:
        lines.append(f"cut = {given.removeprefix(CUT)}")
    lines += ["answers = nl.predict(run.nested, inputs, cut=cut)  # probabilities, with their uncertainty"]
    lines += ["small = nl.extract(run.nested, cut)  # a plain module"]
    load = f"import nestling as nl\n\nsmall = nl.load_small({str(small)!r})"
    return {
        "extract": f"nestling extract {words} {given}",
        "run-small": f"{load}\nanswers = small.predict(images)  # as they are in files: normalised inside",
        "export": f"nestling export {words} --to onnx {given}",
        "in-python": "\n".join(lines),
    }


_STEPS = (
    ("export", "Write it to an ONNX file", "It runs without torch and nestling, and normalises its inputs itself."),
    ("extract", "Or write it to a folder", "A plain network, smaller, checked against the nested one."),
    ("run-small", "Read the folder", "Data alone: nothing in it is unpickled. Any batch size."),
    ("in-python", "Or use it in Python", "The same network while it is part of the run, with its uncertainty."),
)
