"""What the half of a transformer takes of the whole one's time in onnxruntime, beside its share of multiply-adds.

A BERT of MiniLM-L6's sizes, or the folder of a pretrained one, is cut to half of its heads and feed-forward units,
saved as a checkpoint and loaded with from_pretrained; then to half of its feed-forward units alone, which its config
can say. The loaded networks answer one text of 128 tokens. CPU time on one thread, the two taking turns; the words of a
vocabulary are looked up, which is no multiplication.
"""

import argparse
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from measuring import in_turns, ratio, report
from torch import nn
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

import nestling as nl
from nestling.delivery import write_transformers

LENGTH, CUT = 128, 0.5
SIZES: dict[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
WHAT: dict[str, dict[str, Any]] = {
    "heads and feed-forward units": {},
    "feed-forward units": {"kinds": ("neuron",), "exclude": ("bert.pooler.dense",)},
}


class Logits(nn.Module):
    """A network of transformers whose arguments are positional, and whose answer is its logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The logits of texts."""
        logits: torch.Tensor = self.network(input_ids=tokens, attention_mask=mask).logits
        return logits


def in_onnxruntime(network: nn.Module, example: dict[str, torch.Tensor]) -> Callable[[], np.ndarray]:
    """A call of the network's ONNX file on one text."""
    tokens, mask = example["input_ids"][:1], example["attention_mask"][:1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options: Any = {"dynamo": True, "external_data": False, "verbose": False}
        made = torch.onnx.export(Logits(network).eval(), (tokens, mask), input_names=["tokens", "mask"], **options)
    assert made is not None
    session_options = ort.SessionOptions()
    session_options.intra_op_num_threads = 1
    session = ort.InferenceSession(made.model_proto.SerializeToString(), session_options)
    given = {"tokens": tokens.numpy(), "mask": mask.numpy()}
    return lambda: session.run(None, {port.name: given[port.name] for port in session.get_inputs()})[0]


def network_of(folder: Path | None) -> nn.Module:
    """The pretrained network of a folder, or one of its sizes with random weights."""
    torch.manual_seed(0)
    known: type[Any] = BertForSequenceClassification
    made = known(BertConfig(**SIZES)) if folder is None else AutoModelForSequenceClassification.from_pretrained(folder)
    network: nn.Module = made.eval()
    return network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="the folder of a BERT, such as MiniLM-L6")
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    tokens = torch.randint(1, 1000, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    example = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    for what, options in WHAT.items():
        nested = nl.nest(network_of(asked.model), example, num_blocks=4, num_always=1, weights=None, **options).eval()
        with tempfile.TemporaryDirectory() as place:
            folder = write_transformers(nested, Path(place) / "half", cut=CUT, code=not options)
            half = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=not options)
        with torch.no_grad(), nested.at(CUT):
            expected = nested(**{name: tensor[:1] for name, tensor in example.items()}).numpy()
        runs = {"half": in_onnxruntime(half, example), "whole": in_onnxruntime(network_of(asked.model), example)}
        difference = float(np.abs(runs["half"]() - expected).max() / np.abs(expected).max())
        macs = nl.cost(nested, CUT).macs / nl.cost(nested, 1.0).macs
        times = ratio(in_turns(runs, asked.rounds), "half", "whole")
        over = {key: round(value / macs, 3) for key, value in times.items()}
        report(f"half of {what}", macs=round(macs, 3), time=times, time_over_macs=over, difference=difference)


if __name__ == "__main__":
    main()
