"""The application: the routes of a service, for any server that speaks ASGI."""

from typing import Any

from nestling.errors import ArgumentError
from nestling.service.dispatcher import Dispatcher
from nestling.service.engine import Engine
from nestling.service.gate import Gate
from nestling.service.intake import Intake
from nestling.service.metrics import Metrics
from nestling.service.options import Serving


def application(
    engine: Engine,
    *,
    name: str = "network",
    options: Serving = Serving(),  # noqa: B008 (frozen)
    token: str | None = None,
) -> "Service":
    """A network behind HTTP: the Open Inference Protocol, ``/predict`` for images, metrics, and a page to try it.

    Args:
        engine: the network at its widths.
        name: the name of the model in the protocol.
        options: what the service aims at, and its limits.
        token: what callers must send as ``Authorization: Bearer TOKEN``; None lets everybody in.

    Returns:
        An ASGI application: uvicorn, hypercorn or Ray Serve run it.

    Raises:
        ArgumentError: if the extra ``serve`` is not installed.

    Examples:
        >>> from nestling.service import FileEngine, Serving, application
        >>> app = application(FileEngine("digits.onnx"), name="digits", options=Serving(target_ms=50.0))
        >>> uvicorn.run(app)  # doctest: +SKIP
    """
    try:
        import starlette  # noqa: F401
    except ImportError:
        advice = "Install it with: pip install 'nestling[serve]'"
        raise ArgumentError("starlette", "nothing", "installed to serve a network", advice) from None
    return Service(engine, name, options, token)


class Service:
    """A network behind HTTP, as an ASGI application."""

    def __init__(self, engine: Engine, name: str, options: Serving, token: str | None) -> None:
        from nestling.service.routes import Routes  # needs starlette, which may be missing

        widths = ", ".join(width.name for width in engine.widths)
        self.about = f"{name!r} at widths {widths} ({engine.platform})"
        self.options, metrics = options, Metrics()
        self.intake = Intake(Dispatcher(engine, options, metrics))
        routes = Routes(engine, name, options, self.intake, metrics)
        self._gate = Gate(routes.app(), options, metrics, token, routes.route_of)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        """Answer a request, as ASGI has it."""
        await self._gate(scope, receive, send)
