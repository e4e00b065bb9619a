"""The routes of a service: the Open Inference Protocol, images, metrics, the description, and the page."""

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from nestling.service.cascading import cascading_in
from nestling.service.engine import ANSWERED, WIDTH, Engine
from nestling.service.images import image_in, image_input
from nestling.service.inference import HEADER_LENGTH, read_inference, wish_of, written
from nestling.service.intake import Intake
from nestling.service.metrics import TYPE, Metrics
from nestling.service.openapi import description
from nestling.service.options import Serving
from nestling.service.page import content_policy, page
from nestling.service.people import for_people
from nestling.service.refusals import Refused, shown
from nestling.service.tensors import DATATYPES, TEXT
from nestling.version import __version__

VERSION = "1"
"""The version of the only model."""


class Routes:
    """What a service answers at each path; ``intake`` takes the requests."""

    def __init__(self, engine: Engine, name: str, options: Serving, intake: Intake, metrics: Metrics) -> None:
        self._engine, self._called, self._options = engine, name, options
        self._cascade = cascading_in(engine.about, engine.widths)
        self._intake, self._counts = intake, metrics
        self._decoder = ThreadPoolExecutor(1, "nestling-decode")  # one at a time, since a large image takes memory
        model = "/v2/models/{name}"
        self._routes = [
            Route(path, endpoint, methods=[method])
            for method, paths, endpoint in (
                ("GET", ("/v2",), self._server),
                ("GET", ("/v2/health/live",), self._live),
                ("GET", ("/v2/health/ready",), self._ready),
                ("GET", (model, f"{model}/versions/{{version}}"), self._model),
                ("GET", (f"{model}/ready", f"{model}/versions/{{version}}/ready"), self._model_ready),
                ("POST", (f"{model}/infer", f"{model}/versions/{{version}}/infer"), self._infer),
                ("POST", ("/predict",), self._predict),
                ("GET", ("/metrics",), self._metrics),
                ("GET", ("/openapi.json",), self._openapi),
                ("GET", ("/",), self._page),
            )
            for path in paths
        ]

    def app(self) -> Any:  # noqa: ANN401
        """The application of all routes."""
        handlers: Mapping[Any, Any] = {Refused: _refused, HTTPException: _not_there, Exception: _failed}
        app = Starlette(routes=self._routes, exception_handlers=handlers, lifespan=self._intake.running)
        app.router.redirect_slashes = False
        return app

    def route_of(self, path: str) -> str:
        """The name under which a path is counted, one of few."""
        last = path.rpartition("/")[2]
        if path.startswith("/v2/models/"):
            return last if last in ("infer", "ready") else "model"
        return path if path in {route.path for route in self._routes} else "other"

    async def _server(self, _: Request) -> Response:
        return JSONResponse({"name": "nestling", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def _live(self, _: Request) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, _: Request) -> Response:
        return JSONResponse({"ready": not self._intake.draining}, 503 if self._intake.draining else 200)

    async def _model(self, request: Request) -> Response:
        self._check_model(request)
        inputs = [_described(port.name, port.dtype, port.shape) for port in self._engine.ports]
        is_open = any(None in port.shape for port in self._engine.ports)
        outputs = [
            _described(
                name,
                array.dtype.name,
                [None if is_open and axis else size for axis, size in enumerate(array.shape[1:])],
            )
            for name, array in self._engine.outputs.items()
        ]
        own = {ANSWERED: DATATYPES["bool"], WIDTH: TEXT}
        outputs += [
            {"name": name, "datatype": own[name], "shape": [-1]} for name in self._engine.output_names if name in own
        ]
        about = {"widths": ", ".join(width.name for width in self._engine.widths)}
        return JSONResponse(
            {
                "name": self._called,
                "versions": [VERSION],
                "platform": self._engine.platform,
                "inputs": inputs,
                "outputs": outputs,
                "parameters": about,
            }
        )

    async def _model_ready(self, request: Request) -> Response:
        self._check_model(request)
        ready = {"name": self._called, "ready": not self._intake.draining}
        return JSONResponse(ready, 503 if self._intake.draining else 200)

    async def _infer(self, request: Request) -> Response:
        self._check_model(request)
        with self._intake.taking():
            began = time.perf_counter()
            length, body = request.headers.get(HEADER_LENGTH), await request.body()
            most = self._options.max_batch
            asked = read_inference(body, length, self._engine, most, self._cascade)
            answer = await self._intake.answer(asked.inputs, asked.wish)
            names = dict.fromkeys(self._engine.widths[number].name for number in answer.widths)
            parameters = {"width": ", ".join(names), "ms": _ms_since(began)}
            head = {"model_name": self._called, "model_version": VERSION, "parameters": parameters}
            content, json_length = written(asked, answer, head, self._engine)
        if json_length is None:
            return Response(content, media_type="application/json")
        headers = {HEADER_LENGTH: str(json_length)}
        return Response(content, headers=headers, media_type="application/octet-stream")

    async def _predict(self, request: Request) -> Response:
        with self._intake.taking():
            began = time.perf_counter()
            wish = wish_of(request.query_params, self._engine, self._cascade)
            content = image_in(await request.body(), request.headers.get("content-type", ""))
            decode = partial(image_input, content, self._engine, self._options.max_pixels)
            inputs = await asyncio.get_running_loop().run_in_executor(self._decoder, decode)
            answer = await self._intake.answer(inputs, wish)
            return JSONResponse(for_people(answer, self._engine) | {"ms": _ms_since(began)})

    async def _metrics(self, _: Request) -> Response:
        dispatcher = self._intake.dispatcher
        width = self._engine.widths[dispatcher.width]
        gauges = {
            "requests_open": ("Requests that are not answered yet, with this one.", self._counts.num_open),
            "queue_examples": ("Examples that wait.", dispatcher.waiting),
            "width_kept": ("The share of blocks that the chosen width keeps.", width.kept),
            "width_number": ("The number of the chosen width, 0 the narrowest.", dispatcher.width),
        }
        return Response(self._counts.text(gauges), media_type=TYPE)

    async def _openapi(self, _: Request) -> Response:
        return JSONResponse(description(self._engine, self._called, self._options))

    async def _page(self, _: Request) -> Response:
        content = page(self._engine, self._called, has_cascade=self._cascade is not None)
        return HTMLResponse(content, headers={"content-security-policy": content_policy()})

    def _check_model(self, request: Request) -> None:
        name, version = request.path_params["name"], request.path_params.get("version", VERSION)
        if name != self._called or version != VERSION:
            raise Refused(
                404, f"there is no model {shown(name)} of version {shown(version)}: there is {self._called!r}, 1"
            )


def _described(name: str, dtype: str, shape: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "name": name,
        "datatype": DATATYPES[dtype],
        "shape": [-1, *(-1 if size is None else size for size in shape)],
    }


def _ms_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)


async def _refused(_: Request, refused: Refused) -> Response:
    return JSONResponse({"error": str(refused)}, refused.status, refused.headers)


async def _not_there(request: Request, error: HTTPException) -> Response:
    reasons = {
        404: f"there is nothing at {shown(request.url.path)}: /openapi.json says what there is",
        405: f"{shown(request.method)} is not possible here: use {(error.headers or {}).get('Allow')}",
    }
    reason = reasons.get(error.status_code, error.detail)
    return JSONResponse({"error": reason}, error.status_code, error.headers)


async def _failed(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"the service failed: {type(error).__name__}"}, 500)
