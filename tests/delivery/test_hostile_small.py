"""Folders of small networks that were damaged or made by hand: refused in one line, nothing run, nothing else read."""

import io
import json
import os
import pickle
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import nn

import nestling as nl
from effort import tries
from forging import forgeries, read_or_refused, write_signed
from nestling.delivery import load_small, save_small, small_record
from nestling.storage.files import read_json, read_tensors, tensor_bytes

GRAPH, WEIGHTS, ABOUT = "network.json", "weights.safetensors", "small.json"
SOURCE = Path(nl.__file__).parent
NUM_FORGED = tries(3, 1)
"""How many values each entry of a file is replaced by."""


class Net(nn.Module):
    """Something of all that a record may have: a norm, a constant, a hidden buffer, a shared weight, two outputs."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)
        self.left = nn.Linear(2, 3)
        self.right = nn.Linear(2, 3)
        self.right.weight = self.left.weight
        self.register_buffer("shift", torch.randn(2), persistent=False)

    def forward(self, x):
        hidden = self.norm(self.first(x)).relu().mean((2, 3)) + self.shift
        return {"scores": self.left(hidden) + torch.tensor([0.1, 0.2, 0.3]), "all": (self.right(hidden),)}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A folder as it is written, and what its network answers."""
    place = tmp_path_factory.mktemp("good")
    torch.manual_seed(0)
    network, x = Net().eval(), torch.randn(4, 1, 5, 5)
    save_small(network, ((x[:2],), {}), place, record())
    with torch.no_grad():
        return place, x, network(x)["scores"]


def record():
    data = {
        "name": "mine",
        "task": "classification",
        "as_bytes": True,
        "input_shape": [1, 5, 5],
        "mean": [0.3],
        "std": [0.5],
    }
    calibration = nl.Calibration(1.5, {0.9: 0.8}, 100, "categorical", 0, None)
    return small_record(data | {"classes": ["a", "b", "c"]}, nl.prediction.Categorical(), calibration, "0" * 64)


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good[0], tmp_path / "small")


# Nothing is run, and nothing else is read.

SEEN: list[str] = []
"""What a load did, as python's audit events tell."""
WATCHING: list[bool] = []
RUNS = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "socket.connect", "shutil.rmtree")


def note(event, args):
    """Note what could do harm, and every file that is opened."""
    if WATCHING and event in RUNS:
        SEEN.append(f"{event} {args}")
    if WATCHING and event == "open" and isinstance(args[0], str):
        SEEN.append(f"open {args[0]}")


@pytest.fixture(scope="module", autouse=True)
def hook():
    """Audit hooks stay for as long as the process lives; this one does nothing unless a load is watched."""
    sys.addaudithook(note)


@pytest.fixture(autouse=True)
def nothing_is_run(tmp_path, monkeypatch):
    """Whatever unpickles fails, and nothing that a load opens lies outside of its folder and of python itself."""
    for module, name in ((pickle, "loads"), (pickle, "load"), (torch, "load"), (torch.export, "load")):
        monkeypatch.setattr(module, name, lambda *_, name=name, **__: pytest.fail(f"{name} was called"))
    monkeypatch.chdir(tmp_path)
    SEEN.clear()
    yield
    own = ("open /proc/", "open /sys/", f"open {sys.prefix}", f"open {sys.base_prefix}", f"open {SOURCE}")
    assert not [what for what in SEEN if not what.startswith((f"open {tmp_path / 'small'}", *own))]
    assert not (tmp_path / "mark").exists()


def load(folder):
    """Load a folder, watched."""
    WATCHING.append(True)
    try:
        return load_small(folder)
    finally:
        WATCHING.clear()


def refused(folder, said="."):
    """The folder is refused in one line."""
    with pytest.raises(nl.RunError, match=said) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


class Code:
    """What runs when it is unpickled."""

    def __reduce__(self):
        return (open, ("mark", "w"))


def pickled():
    return pickle.dumps(Code())


def archive(*names):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name in names:
            file.writestr(name, pickled())
    return content.getvalue()


FOREIGN = {
    "a pickle": pickled(),
    "an archive of torch.save": archive("archive/data.pkl", "archive/version"),
    "an archive of torch.export": archive("archive/models/model.json", "archive/data/constants/model_constants.pkl"),
    "nothing": b"",
    "text": b"no network",
    "zeros": b"\0" * 10_000,
    "a tensor file of others": save({"x": torch.zeros(3)}),
    "deep": b"[" * 100_000,
    "deep and closed": b'{"format": 1, "a": ' + b"[" * 900 + b"]" * 900 + b"}",
    "a number without end": b'{"format": 1' + b"0" * 5000 + b"}",
}


def sign(folder):
    """Have the record name the files as they are now."""
    from hashlib import sha256

    about = read_json(folder / ABOUT)
    about["files"] = {name: sha256((folder / name).read_bytes()).hexdigest() for name in (GRAPH, WEIGHTS)}
    write_signed(folder / ABOUT, about)


def test_a_folder_as_it_was_written_is_read(good, folder):
    small = load(folder)
    with torch.no_grad():
        torch.testing.assert_close(small(good[1])["scores"], good[2])
    sign(folder)
    load(folder)


@pytest.mark.parametrize("name", [GRAPH, WEIGHTS, ABOUT])
@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_foreign_files(folder, name, content):
    (folder / name).write_bytes(content)
    refused(folder)
    if name != ABOUT:
        sign(folder)
        refused(folder)


@pytest.mark.parametrize("name", [GRAPH, WEIGHTS, ABOUT])
def test_files_that_are_cut_short_or_of_another_network(folder, name):
    content = (folder / name).read_bytes()
    for end in (1, len(content) // 2, len(content) - 2):
        (folder / name).write_bytes(content[:end])
        refused(folder)
    (folder / name).unlink()
    refused(folder)
    os.mkfifo(folder / name)
    refused(folder, "is not a plain file")
    (folder / name).unlink()
    torch.manual_seed(1)
    save_small(Net().eval(), ((torch.randn(2, 1, 5, 5),), {}), folder.parent / "other", {})
    (folder / name).write_bytes((folder.parent / "other" / name).read_bytes())
    refused(folder)


def test_a_folder_of_a_version_that_wrote_programs(folder):
    (folder / GRAPH).unlink()
    (folder / "network.pt2").write_bytes(archive("archive/data.pkl"))
    about = read_json(folder / ABOUT)
    del about["files"]
    write_signed(folder / ABOUT, about)
    refused(folder, r"network\.pt2, which torch unpickles and nestling does not read\. Extract the network again")


@pytest.mark.parametrize(
    "files",
    [
        *({}, [], "x", {GRAPH: ""}, {GRAPH: "", "../secret": ""}, {GRAPH: "", "/etc/passwd": ""}),
        *(
            {GRAPH: "", "network.pt2": ""},
            {GRAPH: "", WEIGHTS: "", "pruned.safetensors": ""},
            {GRAPH: 1, WEIGHTS: None},
        ),
    ],
    ids=str,
)
def test_files_that_a_record_may_not_name(folder, files):
    about = read_json(folder / ABOUT)
    write_signed(folder / ABOUT, about | {"files": files})
    refused(folder)


# Graphs that were made by hand.

MARK = "__import__('pathlib').Path('mark').write_text('run')"


def call(name, *args, **more):
    """A node at the end of the graph whose result is returned."""

    def forge(graph):
        graph["nodes"].insert(-1, {"name": "made", "call": name, "args": list(args), **more})
        graph["nodes"][-1]["output"][0] = {"node": len(graph["nodes"]) - 2}

    return forge


def first_call(**values):
    return lambda graph: next(node for node in graph["nodes"] if "call" in node).update(values)


def setting(key, value):
    return lambda graph: graph.update({key: value})


FORGED = {
    **{
        f"calls {name}": call(name, *args)
        for name, args in {
            "aten.from_file.default": ["/etc/passwd", False, 10],
            "torch.load": ["x"],
            "os.system": ["touch mark"],
            "os.system.default": ["touch mark"],
            "builtins.eval": [MARK],
            "operator.methodcaller": [MARK],
            "aten.save.default": [0, "mark"],
            "profiler._record_function_enter_new.default": ["x"],
            "aten.__class__.__init__": [],
        }.items()
    },
    "code for a name": first_call(name=f"x = {MARK}"),
    "code for a keyword": first_call(kwargs={f"x={MARK}, y": 1}),
    "code for a tensor": lambda graph: graph["nodes"][0].update(tensor=MARK),
    "code for an input": setting("inputs", [{"tuple": []}, {"dict": {f"x={MARK}": 0}}]),
    "a node that reads itself": call("aten.neg.default", {"node": 10**6}),
    "a cycle": first_call(args=[{"node": 12}]),
    "an input that is not there": setting("inputs", [{"tuple": [0, 1]}, {"dict": {}}]),
    "no inputs": setting("inputs", [{"tuple": []}, {"dict": {}}]),
    "no nodes": setting("nodes", []),
    "a deep tree": lambda graph: graph.update(outputs=json.loads('{"tuple": [' * 300 + "0" + "]}" * 300)),
    "a division by nothing, for which torch would print the graph": call("operator.floordiv", 1, 0),
    "a terabyte": call("aten.ones.default", [10**6, 10**6]),
    "sixty gigabytes of ones": call("aten.ones.default", [2**17, 2**17], kwargs={"dtype": {"dtype": "float32"}}),
    "thirty gigabytes by repetition": call("aten.repeat.default", {"node": 0}, [2**10, 2**10, 2**10, 1]),
    "a large product": call("aten.conv2d.default", {"node": 0}, {"node": 0}, None, [1, 1], [2**17, 2**17]),
    "an example without end": setting("example", [{"shape": [2**20, 2**20], "dtype": "float32"}]),
    "an example below nothing": setting("example", [{"shape": [-1], "dtype": "float32"}]),
    "an example of a module": setting("example", [{"shape": [1], "dtype": "hub"}]),
    "no example": setting("example", []),
    "other answers": lambda graph: graph["answers"][0]["numbers"].__setitem__(0, 7.0),
    "no answers": setting("answers", []),
    "answers of a dictionary": setting("answers", {}),
    "a name for two tensors": setting("shared", {"left.weight": "right.bias"}),
    "a shared tensor of nobody": setting("shared", {"x.y": "z"}),
    "a tensor in place of a method": setting("shared", {"forward": "left.bias"}),
    "a tensor in place of the class": setting("shared", {"__class__": "left.bias"}),
    "a tensor in place of the tensors": setting("shared", {"_parameters": "left.bias"}),
    "sizes": setting("sizes", [[0, ["size"], 0]]),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_graphs_that_were_made_by_hand(folder, capfd, forge):
    graph = read_json(folder / GRAPH)
    forge(graph)
    write_signed(folder / GRAPH, graph)
    sign(folder)
    if forge is FORGED["sizes"]:  # a network that is cut no further has none, and nothing reads them
        load(folder)
    else:
        refused(folder)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        *(("shapes", {}), ("shapes", {"first.weight": [10**6, 10**6]}), ("shapes", {"first.weight": ["x"]})),
        *(("packed", {"first.weight": {"shape": [2**40], "num_pairs": 4}}), ("packed", []), ("nested", None)),
    ],
)
def test_records_of_tensors_that_were_made_by_hand(folder, capfd, entry, value):
    tensors, about = read_tensors(folder / WEIGHTS)
    about[entry] = about[entry] | value if entry == "shapes" and value else value
    (folder / WEIGHTS).write_bytes(tensor_bytes(tensors, about))
    sign(folder)
    if entry == "nested":  # it is asked only of quantised weights
        load(folder)
    else:
        refused(folder)
    assert capfd.readouterr() == ("", "")


def test_zeros_without_end_are_refused_before_memory_is_taken(folder):
    tensors, about = read_tensors(folder / WEIGHTS)
    sparse = {"first.weight.values": torch.zeros(1), "first.weight.index": torch.zeros(1, dtype=torch.uint8)}
    del tensors["first.weight"]
    about["shapes"]["first.weight"] = [2**17, 2**17]
    (folder / WEIGHTS).write_bytes(tensor_bytes(tensors | sparse, about))
    sign(folder)
    refused(folder, "describes tensors of 68,719,")


# Every entry of every file, replaced in turn, with checksums that fit.


def is_right_or_refused(folder, good, place):
    """Whether a folder is refused in one line, or its network answers as it did."""
    _, x, scores = good

    def read():
        small = load(folder)
        with_record(small)
        return small

    small = read_or_refused(read, place)
    if small is None:
        return
    with torch.no_grad():
        found = small(x)
    found = found["scores"] if isinstance(found, dict) else next(iter(found))  # names of outputs may differ
    assert float((found - scores).abs().max()) <= 2e-3 * float(scores.abs().max()), place


def with_record(small):
    """Predict by the record, which may be a forged one."""
    try:
        small.predict(torch.zeros(2, 1, 5, 5, dtype=torch.uint8))
    except (AttributeError, TypeError):  # outputs by name, which no likelihood reads
        return


@pytest.mark.parametrize("name", [GRAPH, ABOUT])
def test_every_entry_of_a_file_of_json(good, folder, capfd, name):
    for place, forged in forgeries(read_json(folder / name), NUM_FORGED):
        write_signed(folder / name, forged)
        if name == GRAPH:
            sign(folder)
        is_right_or_refused(folder, good, place)
    assert capfd.readouterr() == ("", "")


def test_every_entry_of_the_record_of_tensors(good, folder, capfd):
    tensors, about = read_tensors(folder / WEIGHTS)
    for place, forged in forgeries(about, NUM_FORGED):
        (folder / WEIGHTS).write_bytes(tensor_bytes(tensors, forged))
        sign(folder)
        is_right_or_refused(folder, good, place)
    for name, tensor in tensors.items():
        others = (
            None,
            tensor.flatten()[:0],
            tensor.double(),
            tensor.int(),
            tensor.unsqueeze(0),
            tensor + 1e6,
            tensor * torch.nan,
        )
        for other in others:
            kept = {own: t for own, t in tensors.items() if own != name}
            more = kept if other is None else kept | {name: other}
            (folder / WEIGHTS).write_bytes(tensor_bytes(more, about))
            sign(folder)
            is_right_or_refused(folder, good, name)
    assert capfd.readouterr() == ("", "")
