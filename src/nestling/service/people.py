"""An answer about one image in plain words and numbers, for people."""

from typing import Any

import numpy as np

from nestling.runtime import UNCERTAINTIES
from nestling.service.dispatcher import Answer
from nestling.service.engine import ANSWERED, Engine
from nestling.service.refusals import Refused


def for_people(answer: Answer, engine: Engine) -> dict[str, Any]:
    """The class, its probability and all others, the uncertainty, the conformal sets, and the width that answered.

    The class and its probability are None if the answer is "I don't know".
    """
    width = engine.widths[int(answer.widths[0])]
    outputs = {name: array[0] for name, array in answer.outputs.items()}
    found: dict[str, Any] = {"width": width.name}
    if "probs" not in outputs:
        return found | {name: array.tolist() for name, array in outputs.items()}
    probs = outputs["probs"]
    if probs.ndim != 1:
        raise Refused(400, "this network gives more than one class per image: use the inference protocol")
    names = engine.classes if len(engine.classes) == len(probs) else [str(number) for number in range(len(probs))]
    best = int(probs.argmax())
    known = bool(outputs[ANSWERED])
    found |= {ANSWERED: known, "class": names[best] if known else None}
    found |= {"probability": float(probs[best]) if known else None}
    found |= {"probabilities": dict(zip(names, probs.tolist(), strict=True))}
    found |= {"uncertainty": {name: float(outputs[name]) for name in UNCERTAINTIES if name in outputs}}
    sets = {
        f"{coverage:g}": [names[number] for number in np.flatnonzero(1 - probs <= threshold)]
        for coverage, threshold in answer.thresholds.items()
    }
    return found | {"sets": sets}
