"""The page of a run: its numbers are those of the library's own functions, its commands work, its HTML is whole."""

import json
import re
import shlex
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from page_runs import FEW

import nestling as nl
from nestling import commands
from nestling.cascade import Cascading
from nestling.errors import RunError
from nestling.report.page.axes import count
from nestling.storage import read_json, write_json
from nestling.training import Recipe

VOID = {"br", "col", "hr", "input", "meta"}


class Reader(HTMLParser):
    """The elements of a page with their text; an element that is closed in the wrong place is an error."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        own = {"tag": tag, "attrs": dict(attrs), "text": "", "inside": tuple(one["tag"] for one in self.open)}
        self.elements.append(own)
        if tag not in VOID:
            self.open.append(own)

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for own in self.open:
            own["text"] += data

    def all(self, tag, **attrs):
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attrs.items()}
        found = [own for own in self.elements if own["tag"] == tag]
        return [own for own in found if all(own["attrs"].get(name) == value for name, value in wanted.items())]


def read(path):
    return Reader(Path(path).read_text())


def data_of(reader):
    return json.loads(reader.all("script", id="data")[0]["text"])


@pytest.fixture(scope="module")
def reader(page):
    return read(page)


@pytest.fixture(scope="module")
def networks(reader):
    return data_of(reader)["networks"]


@pytest.fixture(scope="module")
def run(searched):
    return nl.open_run(searched)


@pytest.fixture(scope="module")
def curve(searched):
    return nl.Curve.read(searched / "curve.json")


def cut_of(words, run, curve):
    """The cut that the words of ``nestling extract`` mean."""
    option, _, value = words.rpartition(" ")
    if option.endswith("--cut"):
        return nl.network.Cut(tuple((g.name, round(float(value) * g.num_blocks)) for g in run.nested.groups.free))
    name, _, limit = value.partition("=")
    return curve.under(**{name: float(limit)})


def test_figures_are_those_of_evaluate(networks, run, curve):
    data = nl.data.load(**run.data["loaded_with"])
    known, foreign = (data.batches(name, 500, limit=120) for name in ("test", "held_out"))
    assert len(networks) >= 3
    for network in networks:
        words = network["words"]
        cut = cut_of(words["extract"], run, curve)
        scores = nl.evaluate(run.nested, known, cut=cut, samples=2, ood=foreign)
        assert words["accuracy"] == f"{100 * scores.accuracy:.1f}%"
        assert words["ece"] == f"{100 * scores.ece:.1f}%"
        assert words["auroc"] == f"{100 * scores.auroc:.1f}%"
        assert words["nll"] == f"{scores.nll:.3g}"
        low, high = scores.bounds["accuracy"]
        assert words["accuracy-remark"] == f"{100 * low:.1f}% to {100 * high:.1f}%"


def test_costs_are_those_of_the_network_that_is_extracted(networks, run, curve):
    whole = nl.cost(run.nested, 1.0)
    for network in networks:
        words = network["words"]
        price = nl.cost(run.nested, cut_of(words["extract"], run, curve))
        assert (words["macs"], words["params"]) == (count(price.macs), count(price.params))
        assert words["macs-remark"] == f"{price.macs / whole.macs:.0%} of whole"


def test_networks_are_the_best_of_the_curve_under_each_budget(networks, run, curve):
    best = {curve.under(macs=row.macs) for row in curve.rows} | {max(curve.rows, key=lambda r: r.cut.num_blocks).cut}
    assert {cut_of(network["words"]["extract"], run, curve) for network in networks} == best
    sizes = [nl.cost(run.nested, cut_of(network["words"]["extract"], run, curve)).macs for network in networks]
    assert sizes == sorted(sizes)


def test_layers_are_as_wide_as_extracted(networks, run, curve):
    for network in networks:
        small = nl.extract(run.nested, cut_of(network["words"]["extract"], run, curve))
        widths = [own.weight.shape[0] for own in small.modules() if getattr(own, "weight", None) is not None]
        shown = [network["words"][f"layer-{number}"].split()[0] for number in range(len(network["layers"]))]
        assert shown == [str(width) for width in widths]


def test_the_command_of_a_network_extracts_it(networks, searched, run, curve, monkeypatch):
    words = shlex.split(networks[1]["words"]["extract"])
    assert words[:3] == ["nestling", "extract", str(searched)]
    assert words[3] == "--under"
    commands.extract(searched, under=words[4:])
    folder = re.search(r"nl\.load_small\('(.*?)'\)", networks[1]["words"]["run-small"])[1]
    assert Path(folder).is_dir()
    assert networks[1]["words"]["export"].startswith("nestling export")
    names = {"inputs": run.nested.example[0][0]}
    run_data = nl.data.load(**run.data["loaded_with"])
    exec(networks[1]["words"]["in-python"], names)
    assert names["cut"] == cut_of(networks[1]["words"]["extract"], run, curve)
    names["images"] = run_data.split("test").inputs[:2]
    exec(networks[1]["words"]["run-small"], names)
    assert names["answers"].probs.shape == (2, 8)


def test_the_page_opens_with_the_smallest_network_that_is_close_to_the_best(reader, networks):
    accuracies = [float(network["words"]["accuracy"].rstrip("%")) for network in networks]
    first = data_of(reader)["first"]
    answer = reader.all("section", id="size")[0]["text"]
    assert accuracies[first] >= max(accuracies) - 1.1 or "With 120 test examples, that may be chance." in answer
    assert "at most one percentage point worse than the best one" in answer
    assert all(accuracy < max(accuracies) - 0.9 for accuracy in accuracies[:first])
    assert reader.all("input", id="budget")[0]["attrs"]["value"] == str(first)
    assert reader.all("output", data_words="budget")[0]["text"] == networks[first]["words"]["budget"]


def test_each_question_has_an_answer_at_the_top(reader, networks, run):
    answers = {own["attrs"]["href"]: own["text"] for own in reader.all("a") if own["attrs"]["href"].startswith("#")}
    first = data_of(reader)["first"]
    assert networks[first]["words"]["accuracy"] in answers["#size"]
    assert networks[first]["words"]["export"] in answers["#out"]
    assert reader.all("code", data_words="export")[0]["text"] == networks[first]["words"]["export"]
    last = run.log[-1]["validation"]
    for cut in (min(last, key=float), max(last, key=float)):
        assert f"{100 * last[cut]['accuracy']:.1f}%" in answers["#learned"]


def test_keep_probabilities_are_those_of_the_orders(reader, run):
    for number, (name, order) in enumerate(run.nested.orders.items()):
        title = reader.all("title", id=f"order-{number}-title")[0]["text"]
        assert title.startswith(f"{name}: ")
        assert f"{float(order.expected_width().detach()):.1f} of {order.num_blocks}" in title


def test_every_picture_has_a_title_and_numbers(reader):
    pictures = reader.all("svg", role="img")
    titles = {own["attrs"]["id"]: own["text"] for own in reader.all("title") if "id" in own["attrs"]}
    assert len(pictures) > 10
    assert all(titles[own["attrs"]["aria-labelledby"]] for own in pictures)
    assert all("figure" in own["inside"] for own in pictures)
    ids = Counter(own["attrs"]["id"] for own in reader.elements if "id" in own["attrs"])
    assert max(ids.values()) == 1


def test_every_figure_has_a_table_and_every_image_words(reader, page):
    figures = re.findall(r"<figure.*?</figure>", page.read_text(), re.DOTALL)
    assert len(figures) >= 9
    assert [figure[:200] for figure in figures if "<table" not in figure and "<img" not in figure] == []
    assert len(reader.all("img")) == 24
    assert all("says" in own["attrs"]["alt"] for own in reader.all("img"))


def test_nothing_is_fetched(reader, page):
    addresses = [own["attrs"][key] for own in reader.elements for key in ("src", "href", "data") if key in own["attrs"]]
    assert addresses
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in addresses)
    text = page.read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text.replace('url("#hatch")', "")
    assert page.stat().st_size < 2**21


def test_the_commands_and_the_recipe_are_there(reader, searched):
    text = reader.all("section", id="origin")[0]["text"]
    assert f"nestling report {searched} --limit 120 --samples 2" in text
    assert "batch_size" in text
    assert nl.__version__ in text


def test_a_run_without_a_curve_has_the_cuts_of_its_recipe(searched, tmp_path):
    folder = copied(searched, tmp_path / "run")
    (folder / "curve.json").unlink()
    networks = data_of(read(reported([folder])))["networks"]
    assert [n["words"]["extract"].rpartition(" ")[2] for n in networks] == ["0.25", "0.5", "1"]
    assert all("auroc" in network["words"] for network in networks)


def test_a_curve_of_other_weights_is_not_used(searched, tmp_path):
    folder = copied(searched, tmp_path / "run")
    curve = nl.Curve.read(folder / "curve.json")
    nl.Curve(**{**vars(curve), "weights": "other"}).save(folder / "curve.json")
    reader = read(reported([folder]))
    assert "is of other weights" in reader.all("section", id="origin")[0]["text"]
    assert all("--cut" in network["words"]["extract"] for network in data_of(reader)["networks"])


def test_without_data_the_page_says_so(searched, tmp_path, monkeypatch):
    folder = copied(searched, tmp_path / "run")
    curve = nl.Curve.read(folder / "curve.json")

    def gone(*_, **__):
        raise RunError(folder, "has no data any more", "Restore it.")

    monkeypatch.setattr("nestling.commands.reporting.data_of", gone)
    reader = read(reported([folder]))
    assert "has no data any more" in reader.all("section", id="origin")[0]["text"]
    assert "validation data" in reader.all("section", id="size")[0]["text"]
    last = data_of(reader)["networks"][-1]["words"]
    whole = max(curve.rows, key=lambda row: row.cut.num_blocks)
    assert last["accuracy"] == f"{100 * whole.score:.1f}%"
    (folder / "curve.json").unlink()
    assert read(reported([folder])).all("input", id="budget")


def test_saved_scores_are_used_where_there_is_no_data(searched, tmp_path, monkeypatch):
    folder = copied(searched, tmp_path / "run")
    (folder / "curve.json").unlink()
    commands.evaluate(folder, (), limit=60)
    saved = json.loads((folder / "scores.json").read_text())["rows"]
    monkeypatch.setattr("nestling.commands.reporting.data_of", lambda *_, **__: nl.data.load("nothing of that name"))
    reader = read(reported([folder]))
    shown = [network["words"]["accuracy"] for network in data_of(reader)["networks"]]
    assert shown == [f"{100 * row['scores']['accuracy']:.1f}%" for row in saved]
    assert reader.all("svg", aria_labelledby="reliability-0-title")


@pytest.mark.parametrize(
    "scores",
    [
        3,
        {"accuracy": "<b>"},
        {"accuracy": 0.5, "bounds": [1], "by": [2], "reliability": {"count": "x"}},
        {"intervals": {"a": 1}},
    ],
    ids=str,
)
def test_scores_of_strangers_are_no_error(searched, tmp_path, monkeypatch, scores):
    folder = copied(searched, tmp_path / "run")
    (folder / "curve.json").unlink()
    write_json(folder / "scores.json", {"rows": [{"cut": "1", "scores": scores}]})
    monkeypatch.setattr("nestling.commands.reporting.data_of", lambda *_, **__: nl.data.load("nothing of that name"))
    assert "<b>" not in reported([folder]).read_text()


def test_names_of_strangers_are_text(foreign):
    commands.report([foreign], samples=0)
    text = (foreign / "report.html").read_text()
    reader = Reader(text)
    assert len(reader.all("script")) == 2
    assert all(own["attrs"]["src"].startswith("data:") for own in reader.all("img"))
    assert "&lt;script&gt;window.hacked=1" in text
    assert reader.all("h1")[0]["text"] == foreign.name


def test_a_pruning(pruned):
    reader = read(reported([pruned]))
    record = json.loads((pruned / "small.json").read_text())
    text = reader.all("section", id="size")[0]["text"]
    assert count(record["after"]["params"]) in text
    for layer in record["layers"]:
        assert f"{layer['kept']:,} of {layer['total']:,}" in text
    assert f"{100 * record['test']['accuracy']:.1f}%" in text
    assert f"nl.load_small({str(pruned)!r})" in reader.all("section", id="out")[0]["text"]
    assert "sparsity" in reader.all("section", id="learned")[0]["text"]


def test_a_run_beside_a_pruning(searched, pruned, tmp_path):
    out = tmp_path / "page.html"
    commands.report([searched, pruned], out=out, limit=30, samples=0)
    text = read(out).all("section", id="size")[0]["text"]
    assert "smaller (pruned by sparse_vd, scored on digits)" in text


def test_several_runs(searched, tmp_path, pruned):
    other = copied(searched, tmp_path / "other")
    (other / "curve.json").unlink()
    out = tmp_path / "page.html"
    commands.report([searched, other, pruned], out=out, limit=30, samples=0)
    reader = read(out)
    networks = data_of(reader)["networks"]
    labels = [own["text"] for own in reader.all("th", scope="row") if "cell" not in own["attrs"]]
    assert {"digits", "other"} <= set(labels)
    macs = [network["words"]["cell-0-4"] for network in networks]
    assert macs[-1] != macs[0]
    assert "made by the same recipe" in reader.all("section", id="origin")[0]["text"]
    answers = {own["attrs"]["href"]: own["text"] for own in reader.all("a") if own["attrs"]["href"].startswith("#")}
    assert answers["#origin"].endswith("They have the same recipe, data and network.")
    assert "The widest cut came in digits to a validation accuracy of " in answers["#learned"]
    assert ", in other to a validation accuracy of " in answers["#learned"]
    assert "Without a limit " in answers["#size"]


def test_a_folder_that_is_neither(tmp_path):
    with pytest.raises(RunError, match=r"recipe\.json"):
        commands.report([tmp_path])


def test_a_record_that_is_damaged(pruned, tmp_path):
    folder = copied(pruned, tmp_path / "pruned")
    content = read_json(folder / "small.json")
    for name, value in (("layers", [{"name": "a", "kept": 1, "total": 0}]), ("test", 3), ("before", {"params": "x"})):
        write_json(folder / "small.json", content | {name: value})
        with pytest.raises(RunError, match="not the record of a pruning"):
            commands.report([folder])


def copied(folder, place):
    shutil.copytree(folder, place)
    return place


def reported(folders):
    commands.report(folders, limit=30, samples=0)
    return folders[0] / "report.html"


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (lambda x: (2 * x[:, :1]).astype(np.float32), "share of targets inside"),
        (lambda x: (x[:, 0] > 0).astype(np.int64), "right answers"),
    ],
    ids=["numbers", "labels of vectors"],
)
def test_inputs_that_are_no_images(tmp_path, quick_latency, targets, said):
    x = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=targets(x))
    recipe = Recipe(epochs=1, batch_size=32, samples=1, cuts=(0.5, 1.0))
    run = tmp_path / "run"
    commands.train(str(tmp_path / "own.npz"), "mlp", run, FEW, recipe, model_options=["hidden=[8,8]"])
    reader = read(reported([run]))
    assert said in reader.all("section", id="sure")[0]["text"]
    scores = nl.evaluate(
        nl.open_run(run).nested, nl.data.load(tmp_path / "own.npz").batches("test", 500, limit=30), samples=0
    )
    assert data_of(reader)["networks"][-1]["words"]["nll"] == f"{scores.nll:.3g}"


def test_the_cascade_of_a_run_stands_beside_its_networks(searched, tmp_path):
    folder = shutil.copytree(searched, tmp_path / "run")
    assert "cascade, on average" not in reported([folder]).read_text()
    commands.cascade(folder, (0.5, 1.0), Cascading(goal="macs=0.9x"))
    assert "cascade, on average" in reported([folder]).read_text()
