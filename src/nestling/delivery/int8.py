"""``to_int8``: an ONNX file whose inner layers compute in 8 bits, compared with the file in float."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from nestling.delivery.formats.extras import check_extra
from nestling.delivery.quantised import LEAST_AGREEMENT, Quantised, write_quantised
from nestling.errors import ArgumentError

Arrays = Mapping[str, np.ndarray]
_INT8, _FLOAT = "in int8", "in float32"
"""How the report calls what a layer computes in."""
_WEIGHTED = {"Conv", "Gemm", "MatMul"}
_BETWEEN = {"Add", "AveragePool", "Clip", "Concat", "GlobalAveragePool", "MaxPool", "Relu"}
"""Operations between two layers with weights that have 8-bit kernels of their own, or let numbers pass as they are."""


def to_int8(
    source: str | PathLike[str],
    target: str | PathLike[str],
    calibration: Iterable[Arrays],
    held_out: Iterable[Arrays],
    *,
    least_agreement: float = LEAST_AGREEMENT,
) -> Quantised:
    """Write an ONNX file that computes in 8 bits, after comparing it with the file in float on held-out examples.

    Convolutions and linear layers get 8-bit weights, with a scale per output channel, and 8-bit activations, whose
    ranges are those of the calibration examples. What comes before the first layer and after the last ones, and the
    last ones themselves, stay in float: rounded logits would round every probability. Batch norms are folded first.

    Args:
        source: The file in float, as ``export`` wrote it.
        target: Where to write.
        calibration: Batches of real inputs, each an array (B, ...) per input of the file, by name.
        held_out: Other batches, on which both files are compared.
        least_agreement: The least share of held-out examples whose class must stay the same, if the file has classes.

    Returns:
        Sizes, layers, and how far the answers are from those in float; the file's record has the agreement too.

    Raises:
        ArgumentError: If there are no examples, or the file has no layer to quantise.
        NestlingError: If fewer examples agree than they must; then nothing is written.

    Examples:
        >>> pixels = data.train.inputs.numpy()  # bytes (N, 1, 8, 8), as the file takes them
        >>> batches = [{"images": pixels[start : start + 64]} for start in range(0, 640, 64)]
        >>> nl.delivery.to_int8("digits.onnx", "digits-int8.onnx", batches[:8], batches[8:], least_agreement=0.8)
        digits-int8.onnx: ... bytes (... before); layers: 2 in int8, 1 in float32; of 128 held-out examples ...
    """
    check_extra("onnx", "onnx", "onnxruntime")
    import onnx

    path = Path(source)
    with tempfile.TemporaryDirectory() as folder:
        prepared = _prepared(path, Path(folder))
        layers = _layers(prepared)
        model = onnx.load(_quantised(prepared, layers, calibration, Path(folder)))
    return write_quantised(path, model, Path(target), layers, held_out, least_agreement)


def _prepared(source: Path, folder: Path) -> Any:  # noqa: ANN401
    """The model with norms folded into the layers before them, constants computed, shapes known, and nodes named."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    options, path = onnxruntime.SessionOptions(), folder / "prepared.onnx"
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    prepared = onnx.shape_inference.infer_shapes(onnx.load(path))
    for number, node in enumerate(prepared.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    add_pre_process_metadata(prepared)  # or the next step advises to do what was done
    return prepared


def _quantised(model: Any, layers: Mapping[str, str], calibration: Iterable[Arrays], folder: Path) -> Path:  # noqa: ANN401
    """A file of the model with QuantizeLinear and DequantizeLinear, by which runtimes choose 8-bit kernels."""
    from onnxruntime.quantization import QuantFormat, quantize_static

    inner = {name for name, kind in layers.items() if kind == _INT8}
    if not inner:
        given = f"a file of {len(layers)} layers, of which none is followed by another"
        raise ArgumentError("source", given, "a file with inner layers", "Leave it in float: it is small.")
    inside = inner | (_before(model, inner) & _after(model, inner))  # and the nodes between two of them
    reader, path = _Reader(calibration), folder / "quantised.onnx"
    quantize_static(
        model,
        path,
        reader,
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        op_types_to_quantize=sorted(_WEIGHTED | _BETWEEN),
        nodes_to_exclude=[node.name for node in model.graph.node if node.name not in inside],
    )
    return path


class _Reader:
    """The batches one by one, as calibration asks for them."""

    def __init__(self, batches: Iterable[Arrays]) -> None:
        self._batches: Iterator[Arrays] = iter(batches)
        self._first = next(self._batches, None)
        if self._first is None:
            raise ArgumentError("calibration", "no batch", "at least one batch of real inputs", "Pass training data.")

    def get_next(self) -> Arrays | None:
        """The next batch, or None after the last."""
        batch, self._first = self._first, None
        return next(self._batches, None) if batch is None else batch


def _layers(model: Any) -> dict[str, str]:  # noqa: ANN401
    """The layers with constant weights, by what they compute in: those that are followed by another, int8."""
    constants = {tensor.name for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in _WEIGHTED and node.input[1] in constants]
    followed = _before(model, {node.name for node in nodes})
    return {node.name: _INT8 if node.name in followed else _FLOAT for node in nodes}


def _before(model: Any, names: set[str]) -> set[str]:  # noqa: ANN401
    """The nodes whose outputs reach the input of one of some nodes."""
    return _reaching(reversed(model.graph.node), names, lambda node: (node.output, node.input))


def _after(model: Any, names: set[str]) -> set[str]:  # noqa: ANN401
    """The nodes that the outputs of some nodes reach."""
    return _reaching(model.graph.node, names, lambda node: (node.input, node.output))


def _reaching(nodes: Iterable[Any], names: set[str], ends: Any) -> set[str]:  # noqa: ANN401
    """The nodes that are met on the way from some nodes on; ``ends`` are the near and far tensors of a node."""
    tensors, reached = set[str](), set[str]()
    for node in nodes:
        near, far = ends(node)
        if tensors & set(near):
            reached.add(node.name)
        if node.name in names or node.name in reached:
            tensors |= set(far)
    return reached
