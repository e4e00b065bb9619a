"""``to_packed``: an ONNX file whose weights on nested levels are stored, and computed with, in 2, 4 or 8 bits."""

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nestling.delivery.formats.extras import check_extra
from nestling.delivery.formats.onnx import graphs_of
from nestling.delivery.quantised import LEAST_AGREEMENT, Quantised, write_quantised
from nestling.errors import ArgumentError
from nestling.running import Levels

Activations = Literal["int8", "float32"]
_BITS = ((1, 2), (4, 4), (8, 8))
"""The largest level that each number of bits holds, as a signed number."""
_BLOCKS = (32, 64, 128)
"""How many weights in a row share a scale, which here all of a row share; 128 is the fastest."""
_ACCURACY: dict[Activations, int] = {"float32": 1, "int8": 4}
"""The ``accuracy_level`` of ONNX Runtime's operation for activations in each precision."""
_DOMAIN = "com.microsoft"
_NOT_FOUND = "in float32, since they are not on levels in the file"


def to_packed(
    source: str | PathLike[str],
    target: str | PathLike[str],
    levels: Mapping[str, Levels],
    held_out: Iterable[Mapping[str, np.ndarray]],
    *,
    activations: Activations = "int8",
    least_agreement: float = LEAST_AGREEMENT,
) -> Quantised:
    """Write an ONNX file with packed weights, after comparing it with the file in float on held-out examples.

    Args:
        source: The file, as ``export`` wrote it, of a network with nested bits.
        target: Where to write.
        levels: The levels of each quantised weight, as ``nested.levels_at(cut)`` gives them.
        held_out: Batches of real inputs, each an array (B, ...) per input of the file, by name.
        activations: What linear layers compute with: ``"int8"`` is fast with 2, 4 and 8 bits; ``"float32"`` gives the
            same answers as before, and is fast with 4 bits alone.
        least_agreement: The least share of held-out examples whose class must stay the same, if the file has classes.

    Returns:
        Sizes, how many bits each weight has, whether the runtime computes with them, and the agreement.

    Raises:
        ArgumentError: If there are no examples, or none of the weights is in the file.
        NestlingError: If fewer examples agree than they must; then nothing is written.

    Examples:
        >>> bits = nl.nest(module, example, kinds=("bit",), weights=None, order="uniform")
        >>> _ = nl.export(bits, "bits.onnx", cut=0.5, compare=False)
        >>> batches = [{"images": images.numpy()}]
        >>> cut = nl.Cut(tuple((group.name, 2) for group in bits.groups.free))  # two pairs of levels per weight
        >>> made = nl.delivery.to_packed("bits.onnx", "packed.onnx", bits.levels_at(cut), batches)
        >>> made.bytes[1] < made.bytes[0]
        True
    """
    check_extra("onnx", "onnx", "onnxruntime")
    import onnx

    model, layers = with_packed_weights(onnx.load(source), levels, activations=activations)
    return write_quantised(Path(source), model, Path(target), layers, held_out, least_agreement)


def with_packed_weights(
    model: Any,  # noqa: ANN401 (onnx's model)
    levels: Mapping[str, Levels],
    *,
    activations: Activations = "int8",
) -> tuple[Any, dict[str, str]]:
    """A copy of a model with packed weights, and for each weight what became of it.

    Linear layers compute with their bits (``MatMulNBits`` of ONNX Runtime, which OpenVINO reads too). Convolutions
    have no such operation: their weights are stored in 8 bits and unpacked when the file is loaded, to the same
    numbers. Levels are powers of two times a scale per output channel, which a folded norm may have changed, so both
    are read from the weights themselves, without rounding.
    """
    import onnx

    packed = onnx.ModelProto()
    packed.CopyFrom(model)
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in packed.graph.initializer}
    nodes, constants, report = list[Any](), list[Any](), dict.fromkeys(levels, _NOT_FOUND)
    for node in packed.graph.node:
        read = _read(node, arrays)
        name = None if read is None else _own_name(node.input[1], read[1], levels)
        if read is None or name is None:
            nodes.append(node)
            continue
        rewrite, kind = _PACKING[node.op_type]
        bits = next(bits for most, bits in _BITS if np.abs(read[0]).max(initial=0) <= most)
        new, made = rewrite(node, *read, bits, activations)
        report[name] = kind.format(bits=bits)
        nodes += new
        constants += made
    if not constants:
        given, needed = ", ".join(levels) or "none", "of weights that the file has"
        raise ArgumentError("levels", given, needed, "Nest with kinds=('bit',), and export the same cut.")
    del packed.graph.node[:]
    packed.graph.node.extend(nodes)
    _replace_constants(packed, constants)
    return packed, report


def _read(node: Any, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:  # noqa: ANN401
    """The levels (N, ...) of a layer's weights as whole numbers, outputs first, and the scales (N,) of its outputs.

    None for other nodes, and for weights that are not on nested levels.
    """
    if node.op_type not in _PACKING or node.input[1] not in arrays:
        return None
    options = {entry.name: entry for entry in node.attribute}
    array = arrays[node.input[1]]
    if node.op_type == "MatMul" or (node.op_type == "Gemm" and not (options.get("transB") and options["transB"].i)):
        array = array.swapaxes(-1, -2)
    plain = all(options[name].f == 1 for name in ("alpha", "beta") if name in options)
    if not plain or ("transA" in options and options["transA"].i) or (array.ndim != 2 and node.op_type != "Conv"):
        return None
    rows = np.abs(array.reshape(len(array), -1))
    smallest = np.where(rows == 0, np.inf, rows).min(1, initial=np.inf)
    scales = np.where(np.isinf(smallest), 1, smallest).astype(array.dtype)
    levels = array / scales.reshape(-1, *(1,) * (array.ndim - 1))
    return (levels.astype(np.int8), scales) if np.isin(np.abs(levels), (0, 1, 2, 4, 8)).all() else None


def _own_name(constant: str, scales: np.ndarray, levels: Mapping[str, Levels]) -> str | None:
    """The weight that a constant of a file is: by its name, or by its scales if the file has it under another one."""
    named = next((name for name in levels if f".{constant}".endswith(f".{name}")), None)
    return named or next((name for name, weight_levels in levels.items() if _has_scale(scales, weight_levels)), None)


def _has_scale(scales: np.ndarray, levels: Levels) -> bool:
    """Whether the smallest weight of each row that has one is 1, 2, 4 or 8 times 1 / tau."""
    units = np.exp(-levels.log_tau.detach().cpu().numpy().astype(np.float64)).ravel()
    if units.size not in (1, scales.size):
        return False
    ratios = (scales / units)[scales != 1]
    return bool(np.isclose(ratios[:, None], (1, 2, 4, 8), rtol=1e-5, atol=0).any(1).all()) and ratios.size > 0


def _computed(
    node: Any,  # noqa: ANN401
    levels: np.ndarray,
    scales: np.ndarray,
    bits: int,
    activations: Activations,
) -> tuple[list[Any], list[Any]]:
    """The nodes of a linear layer that computes with packed weights, and their constants."""
    from onnx import helper, numpy_helper

    outputs, inputs = levels.shape
    block = next((size for size in _BLOCKS if size >= inputs), _BLOCKS[-1])
    codes = _packed(levels, bits, block)
    weights, factors = f"{node.output[0]}.codes", f"{node.output[0]}.scales"
    constants = [numpy_helper.from_array(codes, weights)]
    constants.append(numpy_helper.from_array(np.repeat(scales[:, None], codes.shape[1], 1), factors))
    options = {"K": inputs, "N": outputs, "bits": bits, "block_size": block, "accuracy_level": _ACCURACY[activations]}
    has_bias = len(node.input) > 2 and node.input[2]
    product = f"{node.output[0]}.product" if has_bias else node.output[0]
    names = [node.input[0], weights, factors]
    nodes = [helper.make_node("MatMulNBits", names, [product], node.name, domain=_DOMAIN, **options)]
    if has_bias:
        nodes.append(helper.make_node("Add", [product, node.input[2]], list(node.output)))
    return nodes, constants


def _packed(levels: np.ndarray, bits: int, block: int) -> np.ndarray:
    """Levels (N, K) as bytes (N, blocks, block * bits / 8), the first in the lowest bits, with zero in the middle."""
    outputs, inputs = levels.shape
    zero, per_byte = 1 << (bits - 1), 8 // bits
    codes = np.full((outputs, -(-inputs // block) * block), zero, np.uint8)
    codes[:, :inputs] = levels.astype(np.int16) + zero
    places = codes.reshape(outputs, -1, block // per_byte, per_byte)
    shifted = places << (bits * np.arange(per_byte, dtype=np.uint8))
    packed: np.ndarray = np.bitwise_or.reduce(shifted, axis=-1)
    return packed


def _stored(
    node: Any,  # noqa: ANN401
    levels: np.ndarray,
    scales: np.ndarray,
    bits: int,
    activations: Activations,
) -> tuple[list[Any], list[Any]]:
    """The nodes of a convolution whose weights are unpacked when the file is loaded, and their constants."""
    from onnx import TensorProto, helper, numpy_helper

    codes, factors, numbers, weights = (f"{node.output[0]}.{end}" for end in ("codes", "scales", "levels", "weights"))
    constants = [numpy_helper.from_array(levels, codes)]
    constants.append(numpy_helper.from_array(scales.reshape(-1, *(1,) * (levels.ndim - 1)), factors))
    nodes = [helper.make_node("Cast", [codes], [numbers], to=TensorProto.FLOAT)]
    nodes.append(helper.make_node("Mul", [numbers, factors], [weights]))
    node.input[1] = weights
    return [*nodes, node], constants


Rewrite = Callable[[Any, np.ndarray, np.ndarray, int, Activations], tuple[list[Any], list[Any]]]
_LINEAR: tuple[Rewrite, str] = (_computed, "computed with {bits}-bit weights")
_PACKING: dict[str, tuple[Rewrite, str]] = {
    "Gemm": _LINEAR,
    "MatMul": _LINEAR,
    "Conv": (_stored, "stored in 8 bits, computed in float32"),
}
"""What becomes of each kind of layer, and how the report calls it."""


def _replace_constants(model: Any, made: list[Any]) -> None:  # noqa: ANN401
    """Add constants to a model, and remove those that no node reads any more."""
    from onnx import helper

    read = {port.name for port in model.graph.output}
    read |= {name for graph in graphs_of(model) for node in graph.node for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, *made])
    if all(entry.domain != _DOMAIN for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
