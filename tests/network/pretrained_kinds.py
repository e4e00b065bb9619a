"""The kinds of transformers that people download, small and with random weights, with inputs of several sizes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from oracle import randomise
from torch import Tensor, nn

VOCABULARY = 40
HEADS, HIDDEN = 4, 20
_UNUSED = """
    torchvision torchvision.transforms torchvision.transforms.functional torchvision.ops torchvision.ops.misc
    torchvision.datasets torchvision.models torchvision.models.feature_extraction torchvision.utils
""".split()


@dataclass(frozen=True)
class Kind:
    """A network, and the keyword arguments of a call for a size, such as a number of tokens, and a batch."""

    make: Callable[[float], nn.Module]
    inputs: Callable[[int, int], dict[str, Any]]
    sizes: tuple[int, ...]
    heads: int = HEADS
    """How many heads can be cut in each of the two layers."""


class Called(nn.Module):
    """A network that is called with keyword arguments, as one that takes them in order and returns a tensor."""

    def __init__(self, module: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *args: Any) -> Tensor:
        result = self.module(**dict(zip(self.names, args, strict=True)))
        return result if isinstance(result, Tensor) else result.logits


def _tokens(size: int, batch: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, VOCABULARY, (batch, size), generator=torch.Generator().manual_seed(size))}


def _padded(size: int, batch: int) -> dict[str, Tensor]:
    """Tokens with padding after them, of another length in each example; the first has none."""
    lengths = torch.tensor([max(1, size - 2 * (row % 3)) for row in range(batch)])
    return {**_tokens(size, batch), "attention_mask": (torch.arange(size) < lengths[:, None]).long()}


def _images(size: int, batch: int) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)


def _bert(dropout: float) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, "classifier_dropout": dropout}
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            intermediate_size=HIDDEN,
            max_position_embeddings=16,
            num_labels=3,
            **rates,
        )
    )


def _gpt2(dropout: float) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 24, "n_layer": 2, "n_head": HEADS, "n_positions": 16, "n_inner": HIDDEN}
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=VOCABULARY, **sizes, **rates, **ends))


def _llama(dropout: float) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=3,
            intermediate_size=HIDDEN,
            max_position_embeddings=16,
            attention_dropout=dropout,
        )
    )


def _vit(dropout: float) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=16,
            patch_size=4,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            intermediate_size=HIDDEN,
            num_labels=3,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def timm_vit(dropout: float, **options: Any) -> nn.Module:
    """The vision transformer of timm, for images of any size."""
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    with _without_torchvision():
        from timm.models.vision_transformer import VisionTransformer
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": HEADS, "num_classes": 3}
    rates = {"drop_rate": dropout, "proj_drop_rate": dropout, "attn_drop_rate": dropout}
    return VisionTransformer(**sizes, mlp_ratio=HIDDEN / 24, dynamic_img_size=True, **rates, **options)


@contextmanager
def _without_torchvision() -> Iterator[None]:
    """Let timm be imported where torchvision can't be: its networks need nothing of it."""
    stand_ins = {name: MagicMock(__spec__=ModuleSpec(name, None), __path__=[]) for name in _UNUSED}
    stand_ins["torchvision.ops.misc"].FrozenBatchNorm2d = type("FrozenBatchNorm2d", (nn.Module,), {})
    added = stand_ins.keys() - sys.modules.keys()
    sys.modules.update({name: stand_ins[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


KINDS = {
    "bert": Kind(_bert, _padded, (7, 4, 11)),
    "gpt2": Kind(_gpt2, _tokens, (7, 4, 11)),
    "llama": Kind(_llama, _tokens, (7, 4, 11), heads=3),
    "vit": Kind(
        _vit,
        lambda size, batch: {"pixel_values": _images(size, batch), "interpolate_pos_encoding": True},
        (16, 24, 8),
    ),
    "timm": Kind(timm_vit, lambda size, batch: {"x": _images(size, batch)}, (16, 24, 8)),
}


def made(name: str, dropout: float = 0.0, seed: int = 0) -> nn.Module:
    """A network of a kind in eval mode, in double precision, with a value of its own in every entry."""
    torch.manual_seed(seed)
    return randomise(KINDS[name].make(dropout), torch.Generator().manual_seed(seed)).eval()
