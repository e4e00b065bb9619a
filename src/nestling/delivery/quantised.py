"""What a quantised file is: written only if its answers agree with those of the file in float, and said how far."""

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nestling.delivery.agreement import Agreement, agreement_of
from nestling.errors import NestlingError
from nestling.runtime import KEY, OnnxSession
from nestling.storage import write_whole

LEAST_AGREEMENT = 0.95
"""A file that gives fewer of the held-out examples the same class is not written."""
STEPS = "quantised"
"""The entry of a record that has the layers of each quantisation, and the agreement with the file before it."""


@dataclass(frozen=True)
class Quantised:
    """What ``to_int8`` and ``to_packed`` wrote; it prints as one line.

    Attributes:
        file: Where it is.
        bytes: The size of the file in float, and of this one.
        layers: What each layer computes in, or how each weight is stored, by name.
        agreement: How far the answers are from those in float, on held-out examples.

    Examples:
        >>> batches = [{"images": data.train.inputs[:64].numpy()}, {"images": data.train.inputs[64:128].numpy()}]
        >>> made = nl.delivery.to_int8("digits.onnx", "tiny.onnx", batches[:1], batches[1:], least_agreement=0.5)
        >>> made.file.name, made.agreement.num_examples, set(made.layers.values()) <= {"in int8", "in float32"}
        ('tiny.onnx', 64, True)
    """

    file: Path
    bytes: tuple[int, int]
    layers: Mapping[str, str] = field(repr=False)
    agreement: Agreement

    def __repr__(self) -> str:
        before, after = self.bytes
        counts = {kind: list(self.layers.values()).count(kind) for kind in dict.fromkeys(self.layers.values())}
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        return f"{self.file}: {after:,} bytes ({before:,} before); layers: {kinds}; {self.agreement}"


def write_quantised(
    source: Path,
    model: Any,  # noqa: ANN401 (onnx's model)
    target: Path,
    layers: Mapping[str, str],
    held_out: Iterable[Mapping[str, np.ndarray]],
    least_agreement: float,
) -> Quantised:
    """Compare a quantised model with the file that it was made of, and write it, with a note in its record.

    Raises:
        NestlingError: if fewer examples keep their class than must; then nothing is written.
    """
    before = OnnxSession(source)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.onnx"
        made.write_bytes(model.SerializeToString())
        agreement = agreement_of(before, OnnxSession(made), held_out)
    if agreement.same_class is not None and agreement.same_class < least_agreement:
        raise NestlingError(
            f"with fewer bits only {agreement.same_class:.1%} of {agreement.num_examples} held-out examples keep their "
            f"class, and {least_agreement:.1%} must; nothing was written. Calibrate with more batches of the data, or "
            "keep more bits."
        )
    steps = [*before.about.get(STEPS, []), {"layers": dict(layers), "agreement": asdict(agreement)}]
    del model.metadata_props[:]
    model.metadata_props.add(key=KEY, value=json.dumps(before.about | {STEPS: steps}, allow_nan=False))
    content = model.SerializeToString(deterministic=True)
    write_whole(target, content)
    return Quantised(target, (source.stat().st_size, len(content)), layers, agreement)
