"""A cut of a Hugging Face network as a checkpoint: it loads without nestling, and answers as the nested one does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import nestling as nl
from nestling.delivery import write_transformers
from nestling.errors import ArgumentError, NestlingError, RunError

transformers = pytest.importorskip("transformers")

IDS = torch.randint(0, 50, (3, 9), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(9) < torch.tensor([[9], [5], [7]])).long()
WORDS = {"input_ids": IDS, "attention_mask": MASK}
IMAGES = {"pixel_values": torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
LOADER = """
import sys, torch, transformers
auto, code = getattr(transformers, sys.argv[2]), sys.argv[3] == "True"
network = auto.from_pretrained(sys.argv[1], trust_remote_code=code).eval()
with torch.no_grad():
    torch.save(network(**torch.load(sys.argv[1] + ".inputs"))[0], sys.argv[1] + ".outputs")
assert not any(name.startswith("nestling") for name in sys.modules)
"""


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, num_labels=3, **SIZES))


def vit():
    config = transformers.ViTConfig(image_size=16, patch_size=8, num_labels=3, **SIZES)
    return transformers.ViTForImageClassification(config)


def gpt2():
    config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def llama():
    config = transformers.LlamaConfig(vocab_size=50, **SIZES | {"num_attention_heads": 8, "num_key_value_heads": 4})
    return transformers.LlamaForCausalLM(config)


def nested(make, inputs=WORDS, **options):
    """A network without a tensor of zeros or ones, since these hide what is mixed up."""
    torch.manual_seed(0)
    module = make().eval()
    with torch.no_grad():
        for tensor in module.parameters():
            tensor += 0.1 * torch.randn_like(tensor)
    return nl.nest(module, inputs, **{"num_blocks": 4, "num_always": 1, "weights": None} | options)


def loaded_elsewhere(folder, auto, inputs, code):
    """What the checkpoint answers in a process that has not imported nestling."""
    torch.save(inputs, f"{folder}.inputs")
    command = [sys.executable, "-c", LOADER, str(folder), auto, str(code)]
    subprocess.run(command, check=True, capture_output=True, env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder.parent)})
    return torch.load(f"{folder}.outputs")


def check(network, folder, auto, cut, inputs=WORDS, code=False):
    """The folder's answers, on other inputs than those of ``nest``, equal those of the network at the cut."""
    longer = {name: t.flip(-1) if t.ndim == 4 else torch.cat([t, t.flip(-1)], -1) for name, t in inputs.items()}
    found = loaded_elsewhere(folder, auto, longer, code)
    with torch.no_grad(), network.at(cut):
        expected = network(**longer)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert not torch.allclose(found, network(**longer), atol=1e-3), "the whole network answers otherwise"
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("make", "inputs", "auto", "sizes"),
    [
        (vit, IMAGES, "AutoModelForImageClassification", {"num_attention_heads": 2, "head_dim": 8}),
        (gpt2, WORDS, "AutoModelForCausalLM", {"n_inner": 64, "n_head": 4}),
        (llama, WORDS, "AutoModelForCausalLM", {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}),
    ],
)
def test_a_cut_is_a_smaller_config(make, inputs, auto, sizes, tmp_path):
    network = nested(make, inputs, kinds=("neuron",) if make is gpt2 else ("neuron", "head"))
    folder = write_transformers(network, tmp_path / "half", cut=0.5)
    config = check(network, folder, auto, 0.5, inputs)
    assert {name: config[name] for name in sizes} == sizes
    assert not list(folder.glob("*.py"))
    size = sum(parameter.numel() for parameter in nl.extract(network, 0.5).parameters())
    small = getattr(transformers, auto).from_pretrained(folder)
    assert sum(parameter.numel() for parameter in small.parameters()) == size


def test_feed_forward_units_of_bert_are_a_smaller_config(tmp_path):
    network = nested(bert, kinds=("neuron",), exclude=("bert.pooler.dense",))
    folder = write_transformers(network, tmp_path / "quarter", cut=0.25)
    config = check(network, folder, "AutoModelForSequenceClassification", 0.25)
    assert (config["intermediate_size"], config["num_attention_heads"]) == (16, 4)


def test_a_residual_stream_is_a_smaller_config(tmp_path):
    network = nested(bert, where="all")
    folder = write_transformers(network, tmp_path / "half", cut=0.5)
    config = check(network, folder, "AutoModelForSequenceClassification", 0.5)
    assert {name: config[name] for name in SIZES} == {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }


@pytest.mark.parametrize(
    ("make", "auto", "tensor"),
    [
        (bert, "AutoModelForSequenceClassification", r"self.query.weight \(16, 32\)"),
        (gpt2, "AutoModelForCausalLM", r"attn.c_attn.weight \(32, 48\)"),
    ],
)
def test_heads_without_a_size_of_their_own_need_code(make, auto, tensor, tmp_path):
    network = nested(make)
    with pytest.raises(ArgumentError, match=rf"Config has no sizes .*{tensor}.*code=True"):
        write_transformers(network, tmp_path / "half", cut=0.5)
    assert not list(tmp_path.iterdir())
    folder = write_transformers(network, tmp_path / "half", cut=0.5, code=True)
    config = check(network, folder, auto, 0.5, code=True)
    assert config["auto_map"][auto] == "narrow_model.NarrowModel"
    assert "AutoModel" not in config["auto_map"], "which would be the network without its head"
    assert "nestling" not in (folder / "narrow_model.py").read_text()


def test_layers_of_different_widths_need_code(tmp_path):
    network = nested(bert)
    first, *others = (group.name for group in network.groups.free if group.kind == "neuron")
    cut = {first: 1, **dict.fromkeys(others, 3)}
    with pytest.raises(ArgumentError, match=r"16 of 64 units of .*one number for all layers"):
        write_transformers(network, tmp_path / "mixed", cut=cut)
    folder = write_transformers(network, tmp_path / "mixed", cut=cut, code=True)
    check(network, folder, "AutoModelForSequenceClassification", cut, code=True)


def test_the_mean_of_a_posterior_is_saved(tmp_path):
    network = nested(bert, kinds=("neuron",), exclude=("bert.pooler.dense",), weights="gaussian")
    folder = write_transformers(network, tmp_path / "half", cut=0.5)
    check(network, folder, "AutoModelForSequenceClassification", 0.5)


def test_what_is_no_network_of_transformers_is_refused(tmp_path):
    network = nl.nest(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(2, 4), num_blocks=4)
    with pytest.raises(ArgumentError, match="a nested network of transformers"):
        write_transformers(network, tmp_path / "half", cut=0.5)


def test_a_folder_with_files_is_refused(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(RunError, match="is there already"):
        write_transformers(nested(bert), tmp_path, cut=0.5, code=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_checkpoint_that_answers_otherwise_is_not_written(tmp_path, monkeypatch):
    network = nested(bert, kinds=("neuron",), exclude=("bert.pooler.dense",))
    original = transformers.BertForSequenceClassification.from_pretrained

    def damaged(place: Path):
        loaded = original(place)
        with torch.no_grad():
            loaded.classifier.bias += 1
        return loaded

    monkeypatch.setattr(transformers.BertForSequenceClassification, "from_pretrained", staticmethod(damaged))
    with pytest.raises(NestlingError, match="differs from the nested network"):
        write_transformers(network, tmp_path / "half", cut=0.5)
    assert not (tmp_path / "half").exists()
