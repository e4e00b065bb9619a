"""Every experiment runs to its table, on small files of the official layouts and for an epoch at most."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.io import savemat

import nestling as nl

sys.path.append(str(Path(__file__).parents[1] / "data"))
from data_files import cifar_records, some_bytes, write_idx_set

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
EPOCH = ["--set", "epochs=1"]
RUNS = {
    "bn3/mnist.py": [(["run", "bn3", "0", *EPOCH], {})],
    "bn3/digits.py": [(["--seeds", "1", *EPOCH], {})],
    "bn3/widths.py": [(["run", "nested_plain", "--epochs", "1"], {"BETWEEN": (0.375,), "SEARCHED": (0.375,)})],
    "bn3/pretrained.py": [(["run", "resnet20.safetensors", "plain", "--epochs", "1"], {"BETWEEN": ()})],
    "bn3/one_run.py": [
        (["run", "mnist", "0", "--methods", "fn3"], {"NESTED_EPOCHS": {"mnist": 1}, "EPOCHS": (1,)}),
    ],
    "bn3/one_pass.py": [(["run", "lenet_300_100", "0", "--epochs", "1", "--images", "250"], {"SAMPLES": 2})],
    "bn3/lidc.py": [
        (
            ["run", method, "--epochs", "1", "--width", "0.125", "--precision", "float32"],
            {"MEMBERS": 2, "SAMPLES": (1, 2), "CUTS": (0.5, 1.0)},
        )
        for method in ("bn3", "dropout", "ensemble", "probabilistic")
    ],
    "bn3/ablations.py": [
        (
            ["run", "--epochs", "1", "--only", "relaxed masks, the released code's logits", "mask before the norm"],
            {"EXAMPLES": 20, "TESTED": 10, "FOREIGN": 10, "VALIDATED": 0.2},
        ),
    ],
    "fn3/neurons.py": [(["run", "fn3", "0", "--epochs", "1"], {})],
    "fn3/cifar.py": [(["run", method, "0", *EPOCH], {}) for method in ("nested", "nested bits")],
    "fn3/kinds.py": [(["run", "layer", "0", "--epochs", "1"], {"TRAINED": 20, "TESTED": 10, "SEARCHED": 8})],
    "fn3/together.py": [(["run", "both", "--epochs", "1"], {"TRAINED": 20, "TESTED": 10, "SEARCHED": 0.2})],
    "sparse_vd/weights.py": [
        (["run", "vbd", "lenet_300_100", "0", *"--epochs 1 --pretrain 1 --finish 1 --tune 1".split()], {}),
    ],
    "sparse_vd/random_labels.py": [(["run", "sparse_vd", "0", "--epochs", "1", "--examples", "20"], {})],
    "vbd/dropout.py": [(["run", "vbd", "100", "0", "--epochs", "1"], {})],
    "beta_bernoulli/units.py": [
        (
            ["run", "vbd", "lenet_500_300", "0", "--epochs", "1", "--pretrain", "1"],
            {"speed_ups": lambda *_: {f"{name}_{size}": 1.0 for name in ("torch", "onnx") for size in (1, 64)}},
        ),
    ],
}
"""The runs of each script, with constants of it that would make them long."""
TABLE_OF = {"fn3/cifar.py": ["channels"]}


def write_cifar10(folder):
    folder.mkdir()
    for place, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        (folder / f"{name}.bin").write_bytes(cifar_records(10, 10, seed=place)[0])


def write_svhn(folder):
    folder.mkdir()
    images, labels = some_bytes(32, 32, 3, 10), np.arange(1, 11, dtype=np.uint8)
    savemat(folder / "test_32x32.mat", {"X": images, "y": labels[:, None]})


def write_lidc(folder):
    folder.mkdir()
    masks = (some_bytes(20, 4, 128, 128, seed=1) > 200).astype(np.uint8)
    ids = np.stack([np.repeat(np.arange(10), 2), np.zeros(20), np.arange(20)], 1).astype(np.int16)
    np.savez(folder / "lidc.npz", images=some_bytes(20, 128, 128), masks=masks, ids=ids)


@pytest.fixture
def small_data(tmp_path, monkeypatch):
    """The data sets of the experiments with a few images each, of whose training part a fifth is for validation."""
    for name in ("mnist", "kmnist", "fashion_mnist"):
        write_idx_set(tmp_path / name)
    write_cifar10(tmp_path / "cifar10")
    write_svhn(tmp_path / "svhn")
    write_lidc(tmp_path / "lidc")
    load = nl.data.load

    def load_small(name, *, validation=0.2, **options):
        share = validation if validation < 1 else 0.2
        return load(name, root=tmp_path, verify=False, download=False, validation=share, **options)

    monkeypatch.setattr(nl.data, "load", load_small)
    return tmp_path


def script(name, monkeypatch):
    """A script as a module, which finds the modules beside it."""
    path = EXPERIMENTS / name
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", RUNS)
def test_a_script_runs_to_its_table(name, small_data, monkeypatch, capsys):
    monkeypatch.chdir(small_data)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    module = script(name, monkeypatch)
    if name == "bn3/pretrained.py":
        save_file(module.ResNet20().state_dict(), "resnet20.safetensors")
    out = [] if name == "bn3/digits.py" else ["--out", "rows.jsonl"]
    for arguments, constants in RUNS[name]:
        for constant, value in constants.items():
            assert hasattr(module, constant)
            monkeypatch.setattr(module, constant, value)
        monkeypatch.setattr(sys, "argv", [name, *arguments, *out])
        module.main()
    if out:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", [name, "table", "rows.jsonl", *TABLE_OF.get(name, [])])
        module.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) >= 3
    assert len({line.count(" | ") for line in lines[:3]}) == 1


def test_every_script_of_a_paper_is_run():
    """All but those of transformers and cascades, which no paper has."""
    papers = ("bn3", "fn3", "sparse_vd", "vbd", "beta_bernoulli")
    assert {
        str(path.relative_to(EXPERIMENTS)) for paper in papers for path in EXPERIMENTS.glob(f"{paper}/*.py")
    } == set(RUNS)
