"""A cut of a Hugging Face network as an ordinary checkpoint of transformers, which loads without nestling."""

import sys
from collections.abc import Iterator
from copy import deepcopy
from importlib.util import module_from_spec, spec_from_file_location
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nestling.delivery.smaller_config import Shapes, smaller_config
from nestling.errors import ArgumentError, NestlingError, RunError
from nestling.prediction import CutLike
from nestling.reading import Cut, make_cut
from nestling.running import TOLERANCE, Nested, Pick, extract, gap, in_mode, with_noise
from nestling.storage import make_folder, put_folder, written_whole
from nestling.torch_parts import pytree
from nestling.training import Run

_CODE = Path(__file__).with_name("narrow_model.py")
_CODE_CLASS = "NarrowModel"
_WHOLE_IMPORT = "from transformers import PreTrainedModel as Whole\n"


def write_transformers(
    network: Nested | Run, folder: str | PathLike[str], *, cut: CutLike | None = None, code: bool = False
) -> Path:
    """Write a cut as a checkpoint of transformers: its smaller sizes stand in ``config.json``.

    The folder loads with ``from_pretrained``, without nestling, and nothing in it is code. That takes an architecture
    whose config can say the sizes: feed-forward layers of any, and heads where the config has a ``head_dim`` (Llama,
    ViT), at one width in all layers. Elsewhere, as for the heads of BERT, ``code=True`` writes a short file of code
    beside the weights, and the folder loads with ``from_pretrained(folder, trust_remote_code=True)``. Before the folder
    is put in its place it is loaded, and its answers are compared with those of the nested network.

    Args:
        network: A nested network, or a run, of a network of transformers.
        folder: Where to write: a folder that does not exist, or is empty. Save the tokenizer there afterwards.
        cut: A fraction, widths by group, or a ``Cut``; None for the whole network.
        code: Whether shapes that no config can say may be made by code in the folder.

    Returns:
        The folder.

    Raises:
        ArgumentError: If it is no network of transformers, or its config or its code has no such sizes.
        RunError: If the folder is not empty, or can't be written.

    Examples:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1}
        >>> bert = BertForSequenceClassification(BertConfig(vocab_size=50, **sizes))
        >>> example = {"input_ids": torch.tensor([[3, 4, 5], [6, 7, 8]])}
        >>> model = nl.nest(bert, example, kinds=("neuron",), exclude=("bert.pooler.dense",), num_blocks=4)
        >>> place = nl.delivery.write_transformers(model, "half-bert", cut=0.5)
        >>> BertForSequenceClassification.from_pretrained(place).config.intermediate_size
        16
    """
    nested = network.nested if isinstance(network, Run) else network
    whole, target = _pretrained(nested), Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(target, "is there already", "Choose a new folder, or remove it first.")
    wanted = make_cut(nested.groups, 1.0 if cut is None else cut)
    small = extract(nested, wanted)
    state = small.state_dict()
    make_folder(target.parent)
    with written_whole(target) as place:
        made = place / "checkpoint"
        made.mkdir()
        network_class, config = _class_and_config(nested, wanted, small, made if code else None)
        _save(network_class, config, state, made, whole.dtype)
        _verify(nested, wanted, network_class.from_pretrained(made))
        put_folder(made, target)
    return target


def _pretrained(nested: Nested) -> Any:  # noqa: ANN401
    """The network itself, if transformers can save it."""
    known = sys.modules.get("transformers")
    if known is None or not isinstance(nested.module, known.PreTrainedModel):
        given, needed = f"a {type(nested.module).__name__}", "a nested network of transformers"
        raise ArgumentError("network", given, needed, "Use write_hub or export for any other.")
    return nested.module


def _class_and_config(nested: Nested, cut: Cut, small: nn.Module, code_folder: Path | None) -> tuple[Any, Any]:
    """The class that has the tensors of a cut, and its config: transformers' own, or else one that is written there."""
    shapes = {name: tuple(tensor.shape) for name, tensor in small.state_dict().items()}
    try:
        return type(nested.module), smaller_config(nested.module, nested.groups, cut, shapes)
    except ArgumentError:
        if code_folder is None:
            raise
    return _written_class(nested.module, small, shapes, code_folder)


def _written_class(whole: Any, small: nn.Module, shapes: Shapes, folder: Path) -> tuple[Any, Any]:  # noqa: ANN401
    """The class of ``narrow_model.py``, copied into a folder for this network's class, and a config that names it."""
    own = type(whole)
    text = _CODE.read_text(encoding="utf-8")
    assert _WHOLE_IMPORT in text
    file = folder / _CODE.name
    file.write_text(text.replace(_WHOLE_IMPORT, f"from {own.__module__} import {own.__name__} as Whole\n"), "utf-8")
    config = deepcopy(whole.config)
    before = {name: tuple(tensor.shape) for name, tensor in whole.state_dict().items()}
    config.narrow_shapes = {name: list(shape) for name, shape in shapes.items() if before.get(name) != shape}
    config.narrow_sizes = dict(_changed_sizes(whole, small))
    config.auto_map = dict.fromkeys(_auto_classes(own, type(config)), f"{_CODE.stem}.{_CODE_CLASS}")
    spec = spec_from_file_location(f"nestling_{_CODE.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, _CODE_CLASS), config


def _changed_sizes(whole: nn.Module, small: nn.Module) -> Iterator[tuple[str, int]]:
    """The whole numbers among the attributes of layers that are others in the small network."""
    layers = dict(small.named_modules())
    for path, layer in whole.named_modules():
        for name, value in vars(layers.get(path, layer)).items():
            if type(value) is int and vars(layer).get(name, value) != value:
                yield f"{path}.{name}", value


def _auto_classes(own: type, config: type) -> list[str]:
    """The names of transformers' classes that load this class for such a config."""
    import transformers

    names = [name for name in dir(transformers) if name.startswith("AutoModel")]
    mappings = {name: getattr(getattr(transformers, name), "_model_mapping", {}) for name in names}
    return [name for name, mapping in mappings.items() if mapping.get(config, None) is own] or ["AutoModel"]


def _save(network_class: Any, config: Any, state: dict[str, Tensor], folder: Path, dtype: torch.dtype) -> None:  # noqa: ANN401
    network: nn.Module = network_class(config).to(dtype)
    network.load_state_dict(state)
    network.eval().save_pretrained(folder)  # type: ignore[operator]


@torch.no_grad()
def _verify(nested: Nested, cut: Cut, loaded: nn.Module) -> None:
    """Refuse a checkpoint whose answers are not those of the cut, on the example and on inputs that are not."""
    loaded = loaded.to(nested.device).eval()
    if nested.output is not None:
        loaded.register_forward_hook(Pick(nested.output))
    example, noise = with_noise(nested.example)
    reversed_rows = pytree.tree_map_only(Tensor, lambda t: t.flip(-1) if t.ndim > 1 else t, example)
    worst = 0.0
    for args, kwargs in (example, noise, reversed_rows):
        with in_mode(nested, training=False), nested.at(cut):
            expected = nested(*args, **kwargs)
        try:
            worst = max(worst, gap(expected, loaded(*args, **kwargs)))
        except Exception as error:  # of the network's own code
            given = f"a network whose code has sizes of its own ({' '.join(str(error).split())[:200]})"
            raise ArgumentError("cut", given, "one that the code runs at", "Leave its heads whole.") from error
    if worst > TOLERANCE:
        raise NestlingError(
            f"the checkpoint differs from the nested network by {worst:.2g} of its largest output; nothing was "
            "written. Export the cut in another format, and please report the network."
        )
