"""The description of a service as OpenAPI has it: every path, what it takes, and what it answers."""

from collections.abc import Iterable
from itertools import combinations
from typing import Any

from nestling.service.engine import ANSWERED, Engine
from nestling.service.images import FIELD
from nestling.service.options import Serving
from nestling.service.tensors import DATATYPES
from nestling.version import __version__

Part = dict[str, Any]
_TEXT, _NUMBER, _BOOL = ({"type": kind} for kind in ("string", "number", "boolean"))
_REASONS = {
    400: "The request can't be read, or does not fit the network; the line says why.",
    401: "The token is missing or wrong.",
    404: "There is no such model or path.",
    408: "The request took too long to arrive.",
    413: "The body is too large.",
    415: "The body is compressed.",
    429: "The queue is full, or too many requests are open: try again later.",
    503: "The service is stopping.",
}
_ALWAYS = (401, 408, 413, 415, 429)
"""What the gate answers, whatever the path."""


def description(engine: Engine, name: str, options: Serving) -> Part:
    """The OpenAPI document of a service, with the shapes and widths of its network."""
    about = "A network at several widths. Under load it answers at a narrower one."
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": __version__, "description": about},
        "paths": _paths(engine, name),
        "components": {
            "schemas": {
                "Error": _object({"error": _TEXT}, ["error"]),
                "Inference": _inference(engine, options),
                "Answer": _answer(engine),
                "Prediction": _prediction(engine),
                "Model": _model(),
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _paths(engine: Engine, name: str) -> Part:
    model = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "enum": [name]}}
    version = {"name": "version", "in": "path", "required": True, "schema": {"type": "string", "enum": ["1"]}}
    ready = _object({"ready": _BOOL}, ["ready"])
    paths: Part = {
        "/": {"get": _operation("A page to try the network with an image.", {"text/html": _TEXT})},
        "/openapi.json": {"get": _operation("This description.", _json({"type": "object"}))},
        "/metrics": {"get": _operation("Counts in the text format of Prometheus.", {"text/plain": _TEXT})},
        "/predict": {"post": _predict(engine)},
        "/v2": {"get": _operation("The server.", _json({"type": "object"}))},
        "/v2/health/live": {"get": _operation("Whether the server runs.", _json(_object({"live": _BOOL}, ["live"])))},
        "/v2/health/ready": {"get": _ready("Whether the server takes requests.", ready)},
    }
    for path, given in (("/v2/models/{name}", [model]), ("/v2/models/{name}/versions/{version}", [model, version])):
        about = _operation("The model: its inputs, outputs and widths.", _json(_named("Model")), [404])
        paths[path] = {"parameters": given, "get": about}
        paths[f"{path}/ready"] = {"parameters": given, "get": _ready("Whether the model takes requests.", ready, [404])}
        paths[f"{path}/infer"] = {"parameters": given, "post": _infer(engine)}
    return paths


def _infer(engine: Engine) -> Part:
    about = "Inference. Tensors are JSON, or bytes behind it: then the header says how many bytes are JSON."
    header = {"name": "Inference-Header-Content-Length", "in": "header", "schema": {"type": "integer", "minimum": 0}}
    answers = _json(_named("Answer")) | {"application/octet-stream": {"type": "string", "format": "binary"}}
    content = {"schema": _named("Inference"), "example": {"inputs": _zeros(engine)}}
    body = {"required": True, "content": {"application/json": content}}
    return _operation(about, answers, [400, 404, 503]) | {"parameters": [header], "requestBody": body}


def _zeros(engine: Engine) -> list[Part]:
    """Inputs for one example that a request may have."""
    return [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": DATATYPES[str(array.dtype)],
            "data": array.ravel().tolist(),
        }
        for name, array in engine.zeros(1).items()
    ]


def _predict(engine: Engine) -> Part:
    image = {"type": "string", "format": "binary"}
    kinds = ("image/png", "image/jpeg", "application/octet-stream")
    content: Part = {kind: {"schema": image} for kind in kinds}
    content["multipart/form-data"] = {"schema": _object({FIELD: image}, [FIELD])}
    about = "The class of an image, which is resized to what the network takes."
    wish = {"type": "object", "properties": _wishes(engine), "maxProperties": 1}
    parameters = [{"name": "wish", "in": "query", "style": "form", "explode": True, "schema": wish}]
    body = {"required": True, "content": content}
    answer = _operation(about, _json(_named("Prediction")), [400, 503])
    return answer | {"parameters": parameters, "requestBody": body}


def _wishes(engine: Engine) -> Part:
    """What a request may ask for, of which it may ask for one."""
    return {
        "width": {"type": "string", "enum": [width.name for width in engine.widths]},
        "budget_ms": {"type": "number", "exclusiveMinimum": 0, "maximum": 3_600_000},
        "confidence": {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1}, {"const": "fitted"}]},
    }


def _inference(engine: Engine, options: Serving) -> Part:
    inputs = [
        _object(
            {
                "name": {"const": port.name},
                "shape": {
                    "type": "array",
                    "items": {"type": "integer"},
                    "prefixItems": [
                        {"type": "integer", "minimum": 1, "maximum": options.max_batch},
                        *({"type": "integer", "minimum": 1} if own is None else {"const": own} for own in port.shape),
                    ],
                    "minItems": len(port.shape) + 1,
                    "maxItems": len(port.shape) + 1,
                },
                "datatype": {"const": DATATYPES[port.dtype]},
                "data": {"type": "array"},
                "parameters": {"type": "object"},
            },
            ["name", "shape", "datatype"],
        )
        for port in engine.ports
    ]
    output = _object({"name": {"enum": list(engine.output_names)}, "parameters": {"type": "object"}}, ["name"])
    wishes = _wishes(engine)
    one = {"not": {"anyOf": [{"required": list(pair)} for pair in combinations(wishes, 2)]}}
    parameters: Part = {"type": "object", "properties": wishes | {"binary_data_output": _BOOL}} | one
    return _object(
        {
            "id": _TEXT,
            "parameters": parameters,
            "inputs": {"type": "array", "items": {"anyOf": inputs}, "minItems": len(inputs), "maxItems": len(inputs)},
            "outputs": {"type": "array", "items": output},
        },
        ["inputs"],
    )


def _answer(engine: Engine) -> Part:
    tensor = _object(
        {
            "name": {"enum": list(engine.output_names)},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "datatype": _TEXT,
            "data": {"type": "array"},
            "parameters": {"type": "object"},
        },
        ["name", "shape", "datatype"],
    )
    own = _object({"width": _TEXT, "ms": _NUMBER}, ["width", "ms"])
    outputs = {"type": "array", "items": tensor}
    entries = {"model_name": _TEXT, "model_version": _TEXT, "id": _TEXT, "parameters": own, "outputs": outputs}
    return _object(entries, ["model_name", "model_version", "parameters", "outputs"])


def _prediction(engine: Engine) -> Part:
    numbers = {"type": "object", "additionalProperties": _NUMBER}
    sets = {"type": "object", "additionalProperties": {"type": "array", "items": _TEXT}}
    or_none: list[Part] = [{"type": [own["type"], "null"]} for own in (_TEXT, _NUMBER)]
    entries: Part = {ANSWERED: _BOOL, "class": or_none[0], "probability": or_none[1]}
    entries |= {"probabilities": numbers, "uncertainty": numbers, "sets": sets}
    is_class = "probs" in engine.outputs
    return _object((entries if is_class else {}) | {"width": _TEXT, "ms": _NUMBER}, ["width", "ms"])


def _model() -> Part:
    shape = {"type": "array", "items": {"type": "integer"}}
    tensors = {"type": "array", "items": _object({"name": _TEXT, "datatype": _TEXT, "shape": shape}, ["name"])}
    entries = {"name": _TEXT, "versions": {"type": "array", "items": _TEXT}, "platform": _TEXT}
    entries |= {"inputs": tensors, "outputs": tensors, "parameters": {"type": "object"}}
    return _object(entries, list(entries))


def _ready(about: str, ready: Part, statuses: Iterable[int] = ()) -> Part:
    found = _operation(about, _json(ready), statuses)
    found["responses"]["503"] = {"description": _REASONS[503], "content": {"application/json": {"schema": ready}}}
    return found


def _operation(about: str, answers: Part, statuses: Iterable[int] = ()) -> Part:
    """An operation with its answers by type, and all statuses of refusals."""
    content = {kind: {"schema": schema} for kind, schema in answers.items()}
    responses: Part = {"200": {"description": "The answer.", "content": content}}
    for status in sorted({*_ALWAYS, *statuses}):
        error = {"application/json": {"schema": _named("Error")}}
        responses[str(status)] = {"description": _REASONS[status], "content": error}
    return {"summary": about, "responses": responses}


def _json(schema: Part) -> Part:
    return {"application/json": schema}


def _named(schema: str) -> Part:
    return {"$ref": f"#/components/schemas/{schema}"}


def _object(properties: Part, required: list[str]) -> Part:
    return {"type": "object", "properties": properties, "required": required}
