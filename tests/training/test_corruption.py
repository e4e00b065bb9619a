"""Run folders that were damaged, mixed up or made by hand: refused in one line, or read rightly."""

import json
import os
import random
import shutil
import signal
import stat
import struct
import sys
import traceback
from collections import Counter
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from small_networks import QUICK, examples, images, nested_mlp, nested_norms, normal, same_tensors

import nestling as nl
from effort import tries
from nestling import commands
from nestling.data import Data, Split
from nestling.errors import NestlingError
from nestling.storage.files import digest, read_json, read_tensors, tensor_bytes, write_json
from nestling.training import load, loop, open_run, train
from nestling.training.folder import add_cuts, check_of, identity_of
from nestling.training.loop import Loop

RECIPE, GROUPS, LOG, MODEL = "recipe.json", "groups.json", "log.jsonl", "model.safetensors"
CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
CALIBRATION, SCORES = "calibration.json", "scores.json"
FILES = (RECIPE, GROUPS, LOG, MODEL, CHECKPOINT, PREVIOUS, CALIBRATION, SCORES)
NUM_BLIND = tries(300, 60)
"""How often each file is damaged by something that knows nothing of its format."""
NUM_FORGED = dict.fromkeys(FILES, tries(200, 80)) | dict.fromkeys((RECIPE, MODEL), tries(250, 100))
"""How often each is made by hand, with checksums that fit."""
SETTINGS = QUICK.but(epochs=3, batch_size=12, lr=2.5, schedule="constant", seed=2, samples=1, cuts=(0.5,))
"""The second epoch validates best by far: if weights of the first were taken for them, they would stay."""
LAST_STEP = 6
MOST_SECONDS = 120
"""No trial takes longer."""
MOST_MEGABYTES = 700
"""All of them together take no more memory than this."""


def small_data(seed=2):
    splits = [Split(*examples(count, seed=seed + number).tensors) for number, count in enumerate((24, 96))]
    classes, mean, std = ("low", "middle", "high"), (0.1, 0.0, -0.1, 0.2), (1.5, 1.0, 1.0, 0.5)
    return Data("small", "classification", *splits, None, None, 3, classes, mean, std, "none")


DATA = small_data()


class World:
    """A parent with files that are none of a run's business, and run folders with what a trial puts there."""

    def __init__(self, parent):
        self.parent, self.run, self.outside, self.here = parent, None, parent / "outside", parent / "here"
        self.folders, self.runs = {}, {}
        self.foreign, self.older = {}, {}

    def lay_out(self, kind):
        """Put an undamaged folder in place; what the trial before left as it was may stay."""
        self.run = self.parent / "runs" / kind
        self.run.mkdir(parents=True, exist_ok=True)
        lacking = dict(self.folders[kind])
        for path in self.run.iterdir():
            is_file = stat.S_ISREG(path.lstat().st_mode) and path.lstat().st_nlink == 1
            if is_file and path.name in lacking and path.read_bytes() == lacking[path.name]:
                del lacking[path.name]
            else:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for name, content in lacking.items():
            (self.run / name).write_bytes(content)

    def seen(self, *, inside):
        """Every file outside of the run folders, with its content and when it was written; if asked, this one's too."""
        found = {}
        for top in (self.outside, self.here, *((self.run,) if inside else ())):
            for place, folders, files in os.walk(top):
                for path in (os.path.join(place, name) for name in (".", *files, *folders)):
                    status = os.lstat(path)
                    is_link, is_file = stat.S_ISLNK(status.st_mode), stat.S_ISREG(status.st_mode)
                    content = os.readlink(path) if is_link else Path(path).read_bytes() if is_file else None
                    found[path] = status.st_mode, status.st_mtime_ns, content
        found["names"] = sorted(os.listdir(self.parent)), sorted(os.listdir(self.parent / "runs"))
        return found


def files_of(place):
    return {path.name: path.read_bytes() for path in place.iterdir() if path.name != ".lock"}


def stopped(place, step, data, recipe):
    """The files of a run that keeps a checkpoint after each step and is interrupted before one."""
    real = Loop._step

    def interrupted(self, batch):
        if self.state.step == step - 1:
            raise KeyboardInterrupt
        return real(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
        patch.setattr(Loop, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(nested_mlp(), data, recipe, out=place, quiet=True)
    return files_of(place)


def completed(place, data, recipe, samples=1):
    """A run that is taken on to its end and was scored, and its files."""
    run = train(nested_mlp(), data, recipe, out=place, quiet=True)
    write_json(place / SCORES, {"data": "small", "samples": samples, "rows": [{"cut": 0.5, "nll": 1.25}]})
    return run, files_of(place)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """What a trial needs: runs to damage, and surroundings to keep out of."""
    world = World(tmp_path_factory.mktemp("parent"))
    with pytest.MonkeyPatch.context() as patch:  # so that the files are the same each time, and the trials too
        patch.setattr(sys, "argv", ["nestling"])
        patch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: 0.0))
        patch.setattr(os, "fsync", lambda _: None)
        make_runs(world, tmp_path_factory.mktemp("made"))
    make_surroundings(world)
    return world


def make_runs(world, made):
    """A complete run, one that was stopped, one with batch norms, and files of others to mix in."""
    world.runs["stopped"] = train(nested_mlp(), DATA, SETTINGS, out=made / "never stopped", quiet=True)
    assert [line["kept"] for line in world.runs["stopped"].log] == [True, True, False]
    older = [stopped(made / "run", step, DATA, SETTINGS) for step in (4, LAST_STEP)]
    world.runs["complete"], world.folders["complete"] = completed(made / "run", DATA, SETTINGS)
    world.folders["stopped"] = older[-1] | {SCORES: world.folders["complete"][SCORES]}
    assert set(FILES) - set(world.folders["complete"]) == {PREVIOUS}
    assert set(FILES) - set(world.folders["stopped"]) == {CALIBRATION}
    world.older["complete"] = world.older["stopped"] = older
    others = [(DATA, SETTINGS.but(seed=4)), (DATA, SETTINGS.but(order_lr=0.02)), (small_data(seed=7), SETTINGS)]
    half = [stopped(made / str(number), LAST_STEP, *other) for number, other in enumerate(others)]
    whole = [completed(made / str(number), *other, samples=2 + number)[1] for number, other in enumerate(others)]
    world.foreign = {name: [own[name] for own in half + whole if name in own] for name in FILES}
    make_norms(world, made / "norms")


def make_norms(world, place):
    """A run whose network has statistics; those of one more cut were added at last."""
    run = train(nested_norms(), (images(), images(seed=3)), QUICK, out=place, quiet=True)
    world.older["norms"] = [{MODEL: (place / MODEL).read_bytes()}]
    nl.recalibrate(run.nested, [(images().tensors[0],)], 0.1)
    more = nl.calibrate(run.nested, [images(seed=3).tensors], cut=0.1, samples=1)
    add_cuts(place, run.nested, [*run.calibrations, more])
    world.folders["norms"], world.runs["norms"] = files_of(place), open_run(place, nested_norms())
    assert len(world.runs["norms"].nested.statistics) == 3


def make_surroundings(world):
    """What a hostile folder might reach for: a file, a module that leaves a mark, and inputs to predict for."""
    world.outside.mkdir()
    world.here.mkdir()
    (world.outside / "secret.txt").write_text("not yours\n")
    mark = f"from pathlib import Path\nPath({str(world.outside / 'mark')!r}).write_text('run')\n"
    (world.here / "hostile_c51.py").write_text(mark + "def build(**_): pass\n")
    numpy.save(world.here / "inputs.npy", normal(2, 4).numpy())


@pytest.fixture(autouse=True)
def at_risk(world, monkeypatch):
    """A working folder and a module in reach; writes need not survive a power cut."""
    monkeypatch.chdir(world.here)
    monkeypatch.syspath_prepend(world.here)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    yield
    assert "hostile_c51" not in sys.modules
    assert not (world.outside / "mark").exists()


# Damage that knows nothing of the format: how content changes, and what else may stand in a file's place.


def flipped(content, rng):
    for _ in range(rng.choice((1, 1, 1, 2, 3, 16))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return content


def overwritten(content, rng):
    start, length = rng.randrange(len(content)), rng.choice((1, 4, 30, 512))
    content[start : start + length] = rng.randbytes(len(content[start : start + length]))
    return content


def moved(content, rng):
    start, to, length = rng.randrange(len(content)), rng.randrange(len(content)), rng.choice((1, 8, 200))
    piece = content[start : start + length]
    content[to : to + len(piece)] = piece
    return content


def without_a_piece(content, rng):
    start = rng.randrange(len(content))
    del content[start : start + rng.choice((1, 2, 60))]
    return content


def cut_off(content, rng):
    return content[: rng.choice((rng.randrange(len(content)), len(content) - 1, rng.randrange(16)))]


def extended(content, rng):
    return content + rng.choice((b"\0", b"\n", b"}", rng.randbytes(50), bytes(5000), bytes(content)))


def zeroed(content, rng):
    start = rng.choice((0, rng.randrange(len(content))))
    length = len(content[start : rng.choice((len(content), start + 1, start + 100))])
    content[start : start + length] = bytes(length)
    return content


def emptied(_content, _rng):
    return b""


def deleted(path, _rng, _world, _kind):
    path.unlink()


def swapped(path, rng, _world, _kind):
    """Another file of the folder in its place, and sometimes this one in the other's."""
    other = rng.choice(sorted(own for own in path.parent.iterdir() if own != path))
    content, there = path.read_bytes(), other.read_bytes()
    path.write_bytes(there)
    if rng.random() < 0.5:
        other.write_bytes(content)


def foreign(path, rng, world, _kind):
    path.write_bytes(rng.choice(world.foreign[path.name]))


def older(path, rng, world, kind):
    path.write_bytes(rng.choice(world.older[kind]).get(path.name, path.read_bytes()))


def no_file(path, rng, _world, _kind):
    path.unlink()
    what = rng.choice(("folder", "full folder", "loop", "dangling", "pipe"))
    if what in ("loop", "dangling"):
        path.symlink_to(path.name if what == "loop" else "nowhere")
    elif what == "pipe" and hasattr(os, "mkfifo"):
        os.mkfifo(path)
    else:
        path.mkdir()
        if what == "full folder":
            (path / path.name).write_text("x")


CHANGES = (flipped, overwritten, moved, without_a_piece, cut_off, extended, zeroed, emptied)
BLIND = (*CHANGES, *CHANGES[:5], flipped, flipped, deleted, swapped, swapped, foreign, foreign, older, older, no_file)


def damage(path, rng, world, kind):
    """Damage a file without a look at what it is, and say how."""
    how = rng.choice(BLIND)
    if how in CHANGES:
        path.write_bytes(bytes(how(bytearray(path.read_bytes()), rng)))
    else:
        how(path, rng, world, kind)
    return how.__name__


# Files that were made by hand: hostile texts, and files whose every entry is replaced in turn, with checksums that fit.

HUGE = 10**400
VALUES = (
    *(None, True, False, 0, 1, 2, 3, -1, 7, 65_536, 10**9, 10**15, 2**63, HUGE, -HUGE, 0.5, -0.5, 1e308, 5e-324),
    *("", "x", "a\nb", "nan", "1e999", "\ud800", "\0", "y" * 10_000, "../outside/secret.txt", "/etc/passwd", "0" * 64),
    *("os:system", "hostile_c51:build", "mlp", "unet", "categorical", "gaussian", "uniform", "each", "0.9"),
    *([], {}, [[]], [None], [1] * 300, {"$tensor": 0}, {"$tensor": 10**9}, {"a\nb": 1}, [{"name": "x"}]),
)
DEPTHS = (300, 900, *range(930, 1000, 7))
TEXTS = (
    *(b"", b"null", b"[]", b"{}", b"3", b'"x"', b"{", b"\xef\xbb\xbf{}", b"\x80\x04}.", b"\xff\xfe{\0}\0", b"1" * 5000),
    *(b"[" * 1_000_000, b'{"a":' * 200_000, b'{"format": NaN}', b'{"format": 1, "sha256": 1e999}', b'{"format": 1}'),
    *(
        b'{"format": 2}',
        b'{"format": "a\\nb"}',
        b'{"format": [1]}',
        b'{"format": true}',
        b'{"format": 1, "sha256": [3]}',
    ),
    *(b'{"format": 1%s}' % (b"0" * 4000), b'{"format": 1, "format": 2}', b'{"format": 1, "x": "\\ud800"}'),
    *(b'{"format": ' + b"[" * deep + b"]" * deep + b"}" for deep in DEPTHS),
    *(b'{"format": 1, "x": ' + b"[" * deep + b"]" * deep + b"}" for deep in DEPTHS),
)


def nodes(tree, at=()):
    """The place of every entry of a JSON tree, itself first."""
    yield at
    if isinstance(tree, dict | list):
        for key, own in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from nodes(own, (*at, key))


def mutated(tree, number, rng):
    """The tree with the entry at one of its places dropped, renamed or replaced."""
    places = list(nodes(tree))
    top = {"tree": tree}
    *way, last = ("tree", *places[number % len(places)])
    inner = top
    for key in way:
        inner = inner[key]
    how = rng.randrange(20)
    if how < 4 and way:
        del inner[last]
    elif how < 6 and way and isinstance(inner, dict):
        inner[f"{last}{rng.choice(('x', chr(10), '.'))}"] = inner.pop(last)
    else:
        inner[last] = HUGE if how < 9 else "a\nb" if how < 11 else other_value(inner[last], rng)
    return top.get("tree")


def other_value(own, rng):
    """Something else for an entry of a JSON tree."""
    how = rng.randrange(8)
    if how == 0:
        deep = rng.choice((3, 60, 400, rng.randrange(800, 1000)))
        return json.loads("[" * deep + "]" * deep)
    if how == 1 and isinstance(own, dict):
        return own | {rng.choice(("x", "a\nb", "__class__", "$tensor")): rng.choice(VALUES)}
    if how == 2 and isinstance(own, list):
        return own * rng.choice((2, 300))
    if how == 3 and isinstance(own, int | float):
        return rng.choice((own + 1, own - 1, -own, own * 2, str(own), float(own), [own]))
    return rng.choice(VALUES)


def forge_json(path, number, rng):
    if number < len(TEXTS):
        path.write_bytes(TEXTS[number])
    elif rng.random() < 0.05:
        other = rng.choice((2, 0, 10**30, True, 1.0, "1", "a\nb", None, [1]))
        path.write_text(signed({"format": other} | read_json(path)))
    else:
        content = mutated(read_json(path), number, rng)
        path.write_text(signed({"format": 1} | (content if isinstance(content, dict) else {"content": content})))
        if path.name == RECIPE and rng.random() < 0.75:
            sign_again(path.parent)


def signed(content):
    """The text of a file of JSON, with a checksum that fits; ``write_json`` would take its time for deep ones."""
    return json.dumps(content | {"sha256": digest(content)})


def sign_again(place):
    """Have the other files name the run as its forged recipe does, so that they are taken for its own."""
    identity = identity_of(read_json(place / RECIPE))
    for path in place.glob("*.safetensors"):
        tensors, record = read_tensors(path)
        inner = record["notes"] if path.name == MODEL else record
        inner["run"] = identity
        path.write_bytes(tensor_bytes(tensors, record))


def forge_log(path, number, rng):
    if number < len(TEXTS):
        path.write_bytes(path.read_bytes() * (number % 2) + TEXTS[number] + b"\n")
        return
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    identity = identity_of(read_json(path.parent / RECIPE))
    at = rng.randrange(len(lines))
    assert lines[at].pop("crc32") == check_of(lines[at], identity)
    line = mutated(lines[at], number, rng)
    if isinstance(line, dict):
        check = check_of(line, identity)
        line["crc32"] = rng.choice((check, check, check, float(check), str(check), HUGE, None))
    lines[at] = line
    path.write_text("".join(json.dumps(own) + "\n" for own in lines))


def forge_tensors(path, number, rng):
    """A safetensors file whose record, tensors, metadata or header is changed."""
    how = number % 8
    if how < 6:
        tensors, record = read_tensors(path)
        if how < 4:
            record = mutated(record, number // 2, rng)
        else:
            tensors = other_tensors(tensors, rng)
            if rng.random() < 0.7:
                (path.parent / CALIBRATION).unlink(missing_ok=True)  # it names the weights that it was fitted to
        path.write_bytes(tensor_bytes(tensors, record if isinstance(record, dict) else {"record": record}))
        return
    content = path.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    if how == 6:
        head = mutated(json.loads(header["__metadata__"]["nestling"]), number // 8, rng)
        header["__metadata__"]["nestling"] = json.dumps(head)
    else:
        header = mutated(header, rng.randrange(1000), rng)
    text = json.dumps(header).encode()
    length = rng.choice((*(len(text),) * 6, 0, 1, len(text) - 1, len(text) + 1, 2**32, 2**63, 2**64 - 1))
    path.write_bytes(struct.pack("<Q", length) + text + content[end:])


def other_tensors(tensors, rng):
    """The tensors with one of them dropped, renamed, or of another shape, type or value, or with one more."""
    made = dict(tensors)
    name = rng.choice(sorted(made) or ["network.x"])
    own = made.pop(name, torch.zeros(2))
    odd = ("network.x", "a\nb", "network.a\nb", "example.7", "statistics.0.layers.1.weight", "statistics.0.a\nb")
    odd = rng.choice((*odd, "optimiser.0.step", "optimiser.-1.step", "optimiser.x.y", f"optimiser.{'9' * 5000}.step"))
    how = rng.randrange(10)
    if how < 3:
        return made | ({}, {odd: own}, {name: own, odd: rng.choice((torch.zeros(()), own.clone()))})[how]
    others = (
        *(own.double(), own.half(), own.bfloat16(), own.long(), own.bool(), own.to(torch.complex64)),
        *(own[None], own.flatten(), own.flatten()[:1], own.flatten()[:0], torch.zeros(0, 2**40), torch.zeros(300, 300)),
        *(own.float() * float("nan"), own.float() + float("inf"), own.float() * 1e30, own.float() * 0 - 1.0),
        *(own.to(torch.float8_e4m3fn), own.to(torch.uint16)),
    )
    return made | {name: rng.choice(others)}


def forge(path, number, rng):
    """Make a file by hand; how deep JSON may be is the reader's concern, not the forger's."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        makers = {".json": forge_json, ".jsonl": forge_log, ".safetensors": forge_tensors}
        makers[path.suffix](path, number, rng)
    finally:
        sys.setrecursionlimit(limit)


# Those who read a folder, and what must hold for what they give: all of it if the damage was blind, and for what was
# made by hand, which may say anything, that the network is the one the file holds.


def check_run(given, expected, place, *, seconds=True):
    """A run is as it was; only lines of the log may be lacking, and calibrations whose file is not there.

    What was added to a run at last, the statistics and the calibration of one more cut, may be lacking together.
    """
    assert same_tensors(given.nested.state_dict(), expected.nested.state_dict()), "other weights"
    own, whole = given.nested.statistics, expected.nested.statistics
    assert own.keys() == whole.keys() or set(whole) - set(own) == {expected.calibrations[-1].cut}, "other cuts"
    assert all(same_tensors(known, whole[cut]) for cut, known in own.items()), "other statistics"
    assert (given.recipe, given.likelihood, given.data) == (expected.recipe, expected.likelihood, expected.data)
    if given.calibrations or (place / CALIBRATION).exists():
        usable = [each for each in expected.calibrations if not whole or each.cut in own]
        assert list(given.calibrations) == usable, "other calibrations"
    lines = ([line if seconds else line | {"seconds": 0} for line in log] for log in (given.log, expected.log))
    found, left = next(lines), iter(next(lines))
    assert all(any(line == other for other in left) for line in found), "another line in the log"


def not_refused(read, *args):
    """What a reader gives that has no reason to refuse."""
    try:
        return read(*args)
    except NestlingError as error:
        raise AssertionError(f"refused, too late: {error}") from None


def check_held(nested, place):
    """The network is the one that the folder's file describes, with the weights that it holds."""
    tensors, record = not_refused(read_tensors, place / MODEL)
    held = {name.removeprefix("network."): t.nan_to_num() for name, t in tensors.items() if name.startswith("network.")}
    assert same_tensors({name: own.nan_to_num() for name, own in nested.state_dict().items()}, held), "other weights"
    assert [group.name for group in nested.groups] == [group["name"] for group in record["groups"]], "other groups"


NETWORKS = {}


def blank(kind):
    """A network in which nothing is right yet; it is the same one each time."""
    if kind not in NETWORKS:
        NETWORKS[kind] = nested_norms() if kind == "norms" else nested_mlp()
    for tensor in NETWORKS[kind].state_dict().values():
        tensor.fill_(0.25)
    NETWORKS[kind].statistics = {}
    return NETWORKS[kind]


def untrained():
    """What ``nested_mlp`` gives, without the time for a copy."""
    if "untrained" not in NETWORKS:
        NETWORKS["untrained"], NETWORKS["start"] = nested_mlp(), nested_mlp().state_dict()
    nested = NETWORKS["untrained"].train()
    nested.load_state_dict(NETWORKS["start"])
    nested.zero_grad(set_to_none=True)
    nested.statistics = {}
    return nested


@contextmanager
def filled(nested, place):
    """A network that a reader refuses to fill is left as it was, or has all that the file holds."""
    try:
        yield
    except NestlingError:
        if not all(bool((t == 0.25).all()) for t in nested.state_dict().values() if t.is_floating_point()):
            check_held(nested, place)
        raise


def check_opened(run, world, kind, strict):
    if strict:
        check_run(run, world.runs[kind], world.run)
    else:
        check_held(run.nested, world.run)


def opened(world, kind, strict):
    nested = blank(kind)
    with filled(nested, world.run):
        run = open_run(world.run, nested)
    check_opened(run, world, kind, strict)
    return "used"


def opened_by_name(world, kind, strict):
    check_opened(open_run(world.run), world, kind, strict)
    return "used"


def loaded(world, kind, strict):
    """``load`` has no more than one file to go by: it gives a network that was saved, whosever it is."""
    nested = blank(kind)
    with filled(nested, world.run):
        load(world.run, nested)
    check_held(nested, world.run)
    if strict:
        saved = [world.folders[kind][MODEL], *world.foreign[MODEL], *(own[MODEL] for own in world.older[kind])]
        assert (world.run / MODEL).read_bytes() in saved, "a damaged network was loaded"
    return "used"


def loaded_by_name(world, _kind, _strict):
    check_held(load(world.run), world.run)
    return "used"


def predicted(world, _kind, _strict):
    commands.predict(world.run, Path("inputs.npy"), 0.5, 1, 0.9)
    return "used"


def evaluated(world, _kind, _strict):
    commands.evaluate(world.run, ())
    return "used"


def trained(world, kind, strict):
    """``train`` given again, and then what it left in the folder."""
    steps = []
    real = Loop._step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_step", lambda self, batch: steps.append(None) or real(self, batch))
        run = train(untrained(), DATA, SETTINGS, out=world.run, quiet=strict)
    assert not [path for path in world.run.iterdir() if path.suffix == ".part" and path.is_file()]
    if strict:
        for own in (run, not_refused(open_run, world.run, blank(kind))):
            check_run(own, world.runs[kind], world.run, seconds=False)
    return "went on" if steps else "used"


READ_ONLY = (opened, opened_by_name, loaded, loaded_by_name, predicted)
OPEN, NAME, LOAD = (opened, "complete"), (opened_by_name, "complete"), (loaded, "complete")
AGAIN, RESUME, NORMS = (trained, "complete"), (trained, "stopped"), (opened, "norms")
LOAD_NAME, PREDICT, EVALUATE = ((own, "complete") for own in (loaded_by_name, predicted, evaluated))
NOT_READ = (*(OPEN,) * 16, *(LOAD,) * 16, NAME, NAME, *(AGAIN,) * 5, RESUME)
READERS = {
    RECIPE: (OPEN, OPEN, NAME, AGAIN, RESUME),
    GROUPS: NOT_READ,
    LOG: (*(OPEN,) * 14, NAME, NAME, AGAIN, AGAIN, RESUME),
    MODEL: (OPEN, OPEN, NAME, LOAD, NORMS, AGAIN, RESUME),
    CHECKPOINT: (*(AGAIN,) * 7, RESUME),
    PREVIOUS: (RESUME,),
    CALIBRATION: (OPEN, OPEN, OPEN, NAME, NORMS, AGAIN, AGAIN),
    SCORES: NOT_READ,
}
FORGED_READERS = READERS | {
    RECIPE: (OPEN, OPEN, AGAIN, RESUME, PREDICT),
    MODEL: (OPEN, OPEN, NAME, LOAD_NAME, NORMS, AGAIN, RESUME),
    CALIBRATION: (OPEN, OPEN, AGAIN, PREDICT),
}


# The trials.


class TooLongError(BaseException):
    """A trial that does not end; nobody catches it by accident."""


@contextmanager
def in_time():
    """Interrupt what takes too long, where the system can do that."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_):
        raise TooLongError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(world, reader, kind, *, strict):
    """What a reader makes of the folder as it is: refused, used or went on; anything else is an error."""
    before = world.seen(inside=reader in READ_ONLY)
    try:
        with in_time():
            outcome = reader(world, kind, strict)
    except NestlingError as error:
        text, outcome = str(error), "refused"
        assert len(text.splitlines()) == 1, f"not one line: {text!r}"
        assert len(text) < 1500, f"an endless line: {text[:200]!r}"
        assert not strict or str(world.run) in text, f"names no file: {text}"
    assert world.seen(inside=reader in READ_ONLY) == before, "another file was touched"
    return outcome


def trial(world, name, number):
    """Damage one file of a folder, read the folder, and say what came of it; the same number does the same again."""
    rng = random.Random(f"{name} {number}")
    is_blind = number < NUM_BLIND
    reader, kind = rng.choice((READERS if is_blind else FORGED_READERS)[name])
    world.lay_out(kind)
    path, how = world.run / name, "forged"
    if not path.exists():  # a run has it before it is complete, or after
        path.write_bytes(world.folders["stopped" if kind == "complete" else "complete"][name])
    if name == PREVIOUS and number % 16:
        (world.run / CHECKPOINT).unlink()  # else nobody looks at the one before it
    try:
        if is_blind:
            how = damage(path, rng, world, kind)
        else:
            forge(path, number - NUM_BLIND, rng)
        return attempt(world, reader, kind, strict=is_blind)
    except (Exception, TooLongError) as error:
        text = "".join(traceback.format_exception(error))
        raise AssertionError(f"trial {name} {number}: {how}, {reader.__name__} ({kind})\n{text}") from None


def peak_megabytes():
    try:
        import resource
    except ImportError:  # a system that does not say
        return 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


@pytest.mark.parametrize("name", FILES)
def test_damage_to_a_file(world, capsys, name):
    """Refused, or read rightly, or gone on with to the same end: the line says how often."""
    memory, counts, failures = peak_megabytes(), Counter(), []
    for number in range(NUM_BLIND + NUM_FORGED[name]):
        try:
            counts[trial(world, name, number)] += 1
        except AssertionError as error:
            counts["failed"] += 1
            failures.append(str(error))
    with capsys.disabled():
        outcomes = ", ".join(f"{counts[own]} {own}" for own in ("refused", "used", "went on", "failed"))
        print(f"\n{counts.total()} damages to {name}: {outcomes}")
    assert not failures, f"{len(failures)} trials failed\n" + "\n".join(failures)
    assert counts.total() >= tries(500, 140)
    assert peak_megabytes() - memory < MOST_MEGABYTES


DROP = object()


def edited(place, name, edits):
    """Change entries of a file of JSON, or of a safetensors file's record, by the keys that lead to them."""
    path = place / name
    tensors, content = read_tensors(path) if path.suffix == ".safetensors" else (None, read_json(path))
    for way, value in edits.items():
        inner = content
        for key in way[:-1]:
            inner = inner[key]
        if value is DROP:
            del inner[way[-1]]
        else:
            inner[way[-1]] = value
    if tensors is None:
        write_json(path, content)
    else:
        path.write_bytes(tensor_bytes(tensors, content))


def state(**values):
    return CHECKPOINT, {("state", key): value for key, value in values.items()}, RESUME


def recipe(*way, value, reader):
    return RECIPE, {way: value}, reader


BY_HAND = {
    **{
        f"no {way}": recipe(*way.split("."), value=DROP, reader=AGAIN)
        for way in ("recipe.patience", "data.starts_from", "data.loaded_with", "network.nest.only")
    },
    **{
        f"{key} is huge": recipe("recipe", key, value=value, reader=OPEN)
        for key, value in {"lr": HUGE, "kappa": HUGE, "epochs": HUGE, "cuts": [HUGE], "order_weight": HUGE}.items()
    },
    **{
        f"{key} {str(value)[:9]!r}": recipe("data", key, value=value, reader=PREDICT)
        for key, value in (
            *(("mean", "x"), ("mean", []), ("mean", [HUGE] * 4), ("mean", {}), ("std", [0] * 4), ("std", [None] * 4)),
            *(("classes", 3), ("classes", []), ("classes", [1, 2, 3]), ("classes", ["a"] * 9)),
            *(("input_shape", [HUGE]), ("input_shape", "x"), ("input_shape", [-4]), ("task", 3), ("as_bytes", HUGE)),
        )
    },
    **{
        f"loaded with {str(value)[:14]}": recipe("data", "loaded_with", value=value, reader=EVALUATE)
        for value in (3, [], {}, {"x": 1}, {"source": 3}, {"source": "a\nb"}, {"source": "digits", "seed": HUGE})
    },
    "no cuts": (MODEL, {("cuts",): DROP}, AGAIN),
    "cuts are nothing": (MODEL, {("cuts",): None}, AGAIN),
    "cuts of nobody": (MODEL, {("cuts",): [{"a\nb": 1}]}, AGAIN),
    "a model on two lines": (MODEL, {("network", "model", "name"): "a\nb:c"}, NAME),
    "many layers": (MODEL, {("network", "model", "options", "hidden"): [1] * 2000}, NAME),
    "wide layers": (MODEL, {("network", "model", "options", "hidden"): [60_000, 60_000]}, NAME),
    "seconds": state(seconds=HUGE),
    "sums": state(sums={"loss": HUGE}),
    "sums of others": state(sums={"epoch": 1, "a\nb": 2}),
    "steps back": state(steps_back=HUGE),
    "best score": state(best_score=HUGE),
    "best epoch": state(best_epoch=HUGE),
    "kept epoch": state(kept_epoch=HUGE),
    "far beyond the end": state(epoch=HUGE, step=2 * HUGE, batch=0),
    "nowhere": state(step=4),
    "finished": state(finished=True),
    "temperature": (CALIBRATION, {("calibrations", 0, "temperature"): HUGE}, OPEN),
    "threshold": (CALIBRATION, {("calibrations", 0, "thresholds", "0.8"): HUGE}, OPEN),
    "coverage": (CALIBRATION, {("calibrations", 0, "thresholds", "a\nb"): 0.5}, OPEN),
}


@pytest.mark.parametrize(("name", "edits", "how"), BY_HAND.values(), ids=BY_HAND.keys())
def test_files_made_by_hand(world, name, edits, how):
    reader, kind = how
    world.lay_out(kind)
    (world.run / PREVIOUS).unlink(missing_ok=True)
    edited(world.run, name, edits)
    if name == RECIPE and reader is not trained:
        sign_again(world.run)
    attempt(world, reader, kind, strict=False)


CODE = ("os:system", "hostile_c51:build", "hostile_c51:", "hostile_c51", ".hostile_c51:build", "builtins:exec")


@pytest.mark.parametrize("code", CODE)
def test_code_that_a_folder_names_is_not_run(world, code):
    """Not where the network's builder stands, nor anywhere else, even if every file agrees."""
    command = f"touch {world.outside / 'mark'}"
    for way, value in (
        (("network", "model"), {"name": code, "options": {"command": command}}),
        (("network", "nest", "order"), code),
        (("network", "nest", "weights"), code),
        (("network", "nest", "exclude"), [code]),
        (("network", "example", "kwargs"), {code: command}),
        (("made", "order"), code),
        (("made", "layers"), {code: [code, code]}),
        (("made", "plan"), {"nodes": [{"name": "x", "call": code}]}),
    ):
        world.lay_out("complete")
        edited(world.run, MODEL, {way: value})
        if way[0] == "network":
            edited(world.run, RECIPE, {way: value})
        sign_again(world.run)
        for reader, kind in (NAME, LOAD_NAME, PREDICT, AGAIN):
            outcome = attempt(world, reader, kind, strict=False)
            if reader is not trained or way[0] == "network":  # which reads no more than the weights
                assert outcome == "refused" or way[1] == "nest"  # how nest was called, which is not done again
    for key in ("name", "loaded_with", "task", "likelihood"):
        world.lay_out("complete")
        edited(world.run, RECIPE, {("data", key): code})
        sign_again(world.run)
        for reader, kind in (NAME, PREDICT, AGAIN):
            attempt(world, reader, kind, strict=False)


@pytest.mark.parametrize("code", ["nowhere_c51:build", "os:nowhere_c51", "os:path", ":", "os:", "a b:c", "x\ny:z"])
def test_a_function_that_is_not_there(world, code):
    """Also where code of the folder's may run."""
    world.lay_out("complete")
    edited(world.run, MODEL, {("network", "model"): {"name": code, "options": {}}})
    for read in (load, open_run):
        assert attempt(world, lambda *_, read=read: read(world.run, trust=True), "complete", strict=True) == "refused"


@pytest.mark.parametrize("more", [{"root": "../outside"}, {"download": True}, {"verify": False}], ids=str)
def test_a_folder_does_not_say_where_data_is_fetched_to(world, monkeypatch, more):
    world.lay_out("complete")
    edited(
        world.run,
        RECIPE,
        {("data", "loaded_with"): {"source": "mnist", "validation": 0.1, "hold_out": [], "seed": 0} | more},
    )
    sign_again(world.run)
    monkeypatch.setattr(
        import_module("nestling.commands.training").sets, "load", lambda **given: pytest.fail(f"loaded with {given}")
    )
    assert attempt(world, evaluated, "complete", strict=True) == "refused"


TARGETS = ("the same", "another", "nothing", "a folder", "a hard link")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["complete", "stopped"])
def test_links_that_lead_out_of_the_folder(world, kind, target):
    """They may be read through, and are never written through."""
    for name in (*FILES, ".lock"):
        world.lay_out(kind)
        there, link = world.outside / "target", world.run / name
        content = link.read_bytes() if link.exists() else b""
        link.unlink(missing_ok=True)
        if target == "a folder":
            there.mkdir()
        elif target != "nothing":
            there.write_bytes(b"not yours" if target == "another" else content)
        if target == "a hard link":
            os.link(there, link)
        else:
            link.symlink_to(there, target_is_directory=target == "a folder")
        try:
            for reader in (opened, trained) if kind == "complete" else (trained,):
                attempt(world, reader, kind, strict=True)
        finally:
            shutil.rmtree(there) if target == "a folder" else there.unlink(missing_ok=True)


def test_a_new_run_among_links_that_lead_out(world):
    world.lay_out("complete")
    for path in world.run.iterdir():
        path.unlink()
    for name in (LOG, GROUPS, CALIBRATION, SCORES):
        (world.run / name).symlink_to(world.outside / "secret.txt")
    assert attempt(world, trained, "stopped", strict=True) == "went on"
    assert [path.name for path in world.run.iterdir() if path.is_symlink()] == [SCORES]


@pytest.mark.parametrize("stray", ["file", "folder", "full folder", "link", "link to a folder"])
def test_what_a_killed_writer_left(world, stray):
    """Or what someone put there under such a name."""
    for kind in ("complete", "stopped"):
        world.lay_out(kind)
        path = world.run / f".{MODEL}.123.0123abcd.part"
        if stray.endswith("folder") and not stray.startswith("link"):
            path.mkdir()
            if stray == "full folder":
                (path / "x").write_text("x")
        elif stray == "file":
            path.write_bytes(b"half")
        else:
            path.symlink_to(world.outside if stray.endswith("folder") else world.outside / "secret.txt")
        attempt(world, trained, kind, strict=True)
