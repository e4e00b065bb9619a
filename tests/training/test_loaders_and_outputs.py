"""Networks that return more than a tensor, and loaders that give other things than pairs, as other libraries do."""

from dataclasses import dataclass

import pytest
import torch
from small_networks import QUICK, examples, nested_mlp, normal
from torch import nn
from torch.utils.data import DataLoader, Dataset

import nestling as nl
from nestling import commands
from nestling.network import Nesting
from nestling.pruning import PRUNING


@dataclass
class Answer:
    scores: torch.Tensor
    hidden: torch.Tensor


class Classifier(nn.Module):
    """Three classes of four numbers, given in any of the forms in which networks give them."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        self.first, self.last = nn.Linear(4, 12), nn.Linear(12, 3)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        logits = self.last(hidden)
        forms = {"dict": {"hidden": hidden, "logits": logits}, "tuple": (hidden, logits), "plain": logits}
        return (forms | {"dataclass": Answer(logits, hidden), "nested": {"out": [logits]}})[self.form]


FORMS = {"dict": None, "tuple": 1, "dataclass": "scores", "nested": lambda output: output["out"][0]}


def classifier(form):
    torch.manual_seed(0)
    return Classifier(form)


def nested_classifier(form, **options):
    options = {"num_blocks": 3, "num_always": 1, "output": FORMS.get(form)} | options
    return nl.nest(classifier(form), normal(2, 4), **options)


class Rows(Dataset):
    """The same examples as dictionaries or triples."""

    def __init__(self, form, number=24, seed=2):
        self.form, (self.x, self.y) = form, examples(number, seed=seed).tensors

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        x, y = self.x[row], self.y[row]
        return {"dict": {"x": x, "labels": y}, "triple": (x, y, row), "pair": (x, y)}[self.form]


def loaders(form):
    return DataLoader(Rows(form), 8), DataLoader(Rows(form, seed=3), 8)


def first_two(batch):
    return batch[:2]


@pytest.mark.parametrize("form", FORMS)
def test_a_network_that_returns_more_than_a_tensor(form, tmp_path):
    nested, data = nested_classifier(form), loaders("pair")
    nl.train(nested, data, QUICK, out=tmp_path, quiet=True)
    x, y = examples(seed=4).tensors
    plain = nl.nest(classifier("plain"), normal(2, 4), num_blocks=3, num_always=1)
    plain.eval().load_state_dict(nested.state_dict())
    for cut in (0.34, 1.0):
        with nested.at(cut), plain.at(cut):
            assert torch.equal(nested(x), plain(x))
        small = nl.extract(nested, cut)
        torch.testing.assert_close(small(x), nl.extract(plain, cut)(x))
        torch.testing.assert_close(nl.predict(small, x).probs, nl.predict(nested, x, cut=cut, samples=0).probs)
        for by in ("draws", "moments"):
            found, wanted = (nl.predict(own, x, cut=cut, samples=3, seed=0, by=by).probs for own in (nested, plain))
            torch.testing.assert_close(found, wanted)
    assert nl.evaluate(nested, data[1]) == nl.evaluate(plain, data[1])
    assert nl.search(nested, data[1], num_points=3).rows == nl.search(plain, data[1], num_points=3).rows
    losses = []
    for own in (nested, plain):
        torch.manual_seed(1)
        own.train()
        losses.append(nl.elbo(own, (x, y), dataset_size=24, generator=torch.Generator().manual_seed(0)))
    assert losses[0] == losses[1]
    nested.eval()
    again = nl.load(tmp_path, nested_classifier(form) if form == "nested" else classifier(form))
    assert torch.equal(nl.predict(again, x, samples=0).probs, nl.predict(nested, x, samples=0).probs)


def test_a_plain_network_gives_its_logits():
    x, y = examples().tensors
    assert nl.evaluate(classifier("dict"), [(x, y)]) == nl.evaluate(classifier("plain"), [(x, y)])


def test_a_network_with_several_outputs_is_pruned_and_teaches():
    data = loaders("pair")
    pruned = nl.prune(classifier("dict"), normal(2, 4), data, recipe=PRUNING.but(epochs=1), quiet=True)
    x = examples().tensors[0]
    assert pruned.network(x).shape == (24, 3)
    run = nl.train(nested_classifier("tuple"), data, QUICK.but(epochs=1), teacher=classifier("tuple"), quiet=True)
    assert len(run.log) == 1


def test_where_the_graph_runs_the_same_tensor_is_given():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, x):
            return {"logits": self.last(self.layer(self.embed(x)).mean(1)), "x": x}

    torch.manual_seed(0)
    nested = nl.nest(Attends(), normal(2, 5, 4), num_blocks=2, num_always=1).eval()
    assert nested.plan is not None
    x = normal(3, 5, 4, seed=1)
    with nested.at(0.5):
        torch.testing.assert_close(nl.extract(nested, 0.5)(x), nested(x))
        assert nested(x).shape == (3, 3)


@pytest.mark.parametrize(("form", "read"), [("dict", None), ("triple", first_two)])
def test_a_loader_of_other_batches(form, read):
    """It gives what pairs give, in everything that reads batches."""
    found = []
    for kind, batch in ((form, read), ("pair", None)):
        train, validation = loaders(kind)
        own = nested_classifier("plain", sort="taylor", batches=train, batch=batch, weights=None)
        nl.train(own, (train, validation), QUICK, batch=batch, quiet=True)
        nl.recalibrate(own, validation, 0.34, batch=batch)
        calibration = nl.calibrate(own, validation, cut=1.0, coverage=0.8, batch=batch)
        scores = nl.evaluate(own, validation, ood=train, batch=batch)
        curve = nl.search(own, validation, num_points=3, recalibration=train, batch=batch)
        pruned = nl.prune(
            classifier("plain"),
            normal(2, 4),
            (train, validation),
            recipe=PRUNING.but(epochs=1),
            batch=batch,
            quiet=True,
        )
        found.append((own.state_dict(), calibration, scores, curve.rows, pruned.log[-1]["nll"]))
    for key, tensor in found[0][0].items():
        assert torch.equal(tensor, found[1][0][key])
    assert found[0][1:] == found[1][1:]


def test_elbo_takes_a_dictionary():
    x, y = examples().tensors
    losses = []
    for batch in ({"x": x, "labels": y}, (x, y)):
        torch.manual_seed(0)
        losses.append(
            nl.elbo(
                nested_classifier("plain").train(), batch, dataset_size=24, generator=torch.Generator().manual_seed(0)
            )
        )
    assert losses[0] == losses[1]


X, Y = examples().tensors


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: nl.nest(classifier("tuple"), X, output=5),
            nl.ArgumentError,
            "output: got a tuple of 2.*something with 5",
        ),
        (lambda: nl.nest(classifier("dict"), X, output="logit"), nl.ArgumentError, "a dict with hidden, logits"),
        (lambda: nl.nest(classifier("nested"), X, output="out"), nl.ArgumentError, "'out', which picks a list"),
        (lambda: nl.evaluate(nl.nest(classifier("tuple"), X), [(X, Y)]), nl.ArgumentError, r"nest\(..., output=\)"),
        (
            lambda: nl.elbo(nl.nest(classifier("tuple"), X).train(), (X, Y), dataset_size=24),
            nl.ArgumentError,
            r"a tuple of 2, but it must be a tensor, or something with logits. Choose with nest\(..., output=\)",
        ),
        (lambda: nl.evaluate(nested_mlp(), [{"x": X, "y": Y}]), nl.DtypeError, "a dict with x, y.*labels.*Pass batch="),
        (lambda: nl.train(nested_mlp(), loaders("triple"), QUICK, quiet=True), nl.DtypeError, "a list of 3.*batch="),
        (lambda: nl.evaluate(nested_mlp(), [{"y": X, "labels": Y}]), nl.ArgumentError, "got y by name.* 1 by position"),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


WRONG = {
    "size": (normal(8, 7), nl.ShapeError, r"inputs: got shape \(batch, 7\), but it must be of shape \(batch, 4\)"),
    "axes": (normal(8, 2, 4, 3), nl.ShapeError, r"inputs: got shape \(batch, 2, 4, 3\)"),
    "dtype": (normal(8, 4).double(), nl.DtypeError, r"torch.float64, but it must be torch.float32, as in the example"),
    "whole": (torch.ones(8, 4, dtype=torch.long), nl.DtypeError, r"torch.int64, but it must be torch.float32"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("cut", [0.34, 1.0])
def test_inputs_unlike_the_example_are_named_before_torch_speaks(kind, cut):
    x, error, message = WRONG[kind]
    y, nested = torch.zeros(8, dtype=torch.long), nl.nest(classifier("plain"), normal(2, 4), num_blocks=3, num_always=1)
    calls = [
        lambda: nl.predict(nested, x, cut=cut),
        lambda: nl.predict(nested, x, cut=cut, by="moments"),
        lambda: nl.evaluate(nested, [(x, y)], cut=cut, samples=0),
        lambda: nl.search(nested, [(x, y)], num_points=2),
        lambda: nl.elbo(nested.train(), (x, y), dataset_size=8),
    ]
    for call in calls:
        with pytest.raises(error, match=message):
            call()


def test_an_error_of_the_networks_own_stays_its_own():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            if len(x) == 3:
                raise RuntimeError("three is odd")
            return self.layer(x)

    nested = nl.nest(Odd(), normal(2, 4), where="all")
    with pytest.raises(RuntimeError, match=r"^three is odd$"):
        nl.predict(nested, normal(3, 4), samples=0)


def test_a_hugging_face_classifier_as_it_comes(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=16, max_position_embeddings=8, num_labels=2, **sizes)
    module = transformers.BertForSequenceClassification(config)
    tokens = torch.randint(0, 16, (64, 6), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": t, "attention_mask": torch.ones_like(t), "labels": (t[0] > 7).long()} for t in tokens]
    train, validation = DataLoader(rows[:40], 8), DataLoader(rows[40:], 8)
    example = {key: value for key, value in next(iter(train)).items() if key != "labels"}
    nested = nl.nest(module, example, num_blocks=2, num_always=1)
    assert {group.kind for group in nested.groups.free} >= {"head", "neuron"}
    run = nl.train(nested, (train, validation), QUICK.but(epochs=1), out=tmp_path, quiet=True)
    scores = nl.evaluate(nested, validation, cut=0.5, calibration=run.calibration(0.5))
    assert 0 <= scores.accuracy <= 1
    small = nl.extract(nested, 0.5).eval()
    with nested.at(0.5):
        torch.testing.assert_close(small(**example), nested(**example))
    again = nl.load(tmp_path, module)
    assert torch.equal(nl.predict(again, example, samples=0).probs, nl.predict(nested, example, samples=0).probs)
    assert nl.evaluate(module.eval(), validation).count == 24


def test_the_command_line_takes_a_network_that_returns_more_than_a_tensor(tmp_path, monkeypatch):
    (tmp_path / "many_nets.py").write_text(
        "from torch import nn\n"
        "class Many(nn.Module):\n"
        "    def __init__(self, in_features, num_classes):\n"
        "        super().__init__()\n"
        "        self.first, self.last = nn.Linear(in_features, 8), nn.Linear(8, num_classes)\n"
        "    def forward(self, x):\n"
        "        hidden = self.first(x.flatten(1)).relu()\n"
        "        return {'hidden': hidden, 'scores': self.last(hidden)}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    few, recipe = Nesting(num_blocks=4, num_always=1, output="scores"), QUICK.but(epochs=1, batch_size=256)
    commands.train("digits", "many_nets:Many", tmp_path / "run", few, recipe)
    assert "accuracy" in commands.evaluate(tmp_path / "run", (1.0,), samples=0, trust=True)
