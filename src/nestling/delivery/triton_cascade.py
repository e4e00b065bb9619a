"""The cascade as a model of Triton's Python backend: a copy of this file is its model.py, which needs numpy alone.

It calls the models of the widths in the same server. All that it knows of them is in the entry ``cascade`` of the
parameters in its config.pbtxt, as JSON; nothing of a network is written into the code.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class TritonPythonModel:
    """The narrowest width answers first, and what it is too unsure of goes on to the next."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the score and the stages from the configuration."""
        config = json.loads(args["model_config"])
        cascade = json.loads(config["parameters"]["cascade"]["string_value"])
        self._score, self._stages = cascade["score"], cascade["stages"]
        self._inputs = [port["name"] for port in config["input"]]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request."""
        import triton_python_backend_utils as triton

        responses = []
        for request in requests:
            arrays = {name: triton.get_input_tensor_by_name(request, name).as_numpy() for name in self._inputs}
            try:
                outputs = self._answered(arrays)
            except triton.TritonModelException as error:
                responses.append(triton.InferenceResponse(output_tensors=[], error=triton.TritonError(str(error))))
                continue
            tensors = [triton.Tensor(name, array) for name, array in outputs.items()]
            responses.append(triton.InferenceResponse(output_tensors=tensors))
        return responses

    def _answered(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The answer to each example by the stage at which it ends."""
        number = len(next(iter(arrays.values())))
        rows, outputs = np.arange(number), dict[str, np.ndarray]()
        stages, answered = np.zeros((number, 1), np.int32), np.zeros((number, 1), bool)
        for place, stage in enumerate(self._stages):
            logits = _logits_of(stage["model"], {name: array[rows] for name, array in arrays.items()})
            log_probs = _log_probs(logits, stage["temperature"])
            found = {"probs": np.exp(log_probs).astype(np.float32), "logits": logits}
            shapes = {name: (number, *array.shape[1:]) for name, array in found.items()}
            outputs = outputs or {name: np.zeros(shapes[name], array.dtype) for name, array in found.items()}
            for name, array in found.items():
                outputs[name][rows] = array
            terms = np.exp(log_probs) * log_probs
            unsure = -terms.sum(1) if self._score == "entropy" else -log_probs.max(1)
            is_sure = np.ones(len(rows), bool) if stage["threshold"] is None else unsure <= stage["threshold"]
            stages[rows, 0], answered[rows, 0] = place, is_sure
            rows = rows[~is_sure]
            if not len(rows):
                break
        return {**outputs, "stage": stages, "answered": answered}


def _logits_of(model: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """What another model of this server says of a batch."""
    import triton_python_backend_utils as triton

    request = triton.InferenceRequest(
        model_name=model,
        requested_output_names=["logits"],
        inputs=[triton.Tensor(name, np.ascontiguousarray(array)) for name, array in arrays.items()],
        preferred_memory=triton.PreferredMemory(triton.TRITONSERVER_MEMORY_CPU, 0),
    )
    response = request.exec()
    if response.has_error():
        raise triton.TritonModelException(response.error().message())
    logits: np.ndarray = triton.get_output_tensor_by_name(response, "logits").as_numpy()
    return logits


def _log_probs(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Log-probabilities (B, C); a single logit is that of class 1 against class 0."""
    wide = logits.astype(np.float64) / temperature
    wide = np.concatenate((np.zeros_like(wide), wide), 1) if wide.shape[1] == 1 else wide
    shifted = wide - wide.max(1, keepdims=True)
    log_probs: np.ndarray = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return log_probs
