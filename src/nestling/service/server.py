"""``serve``: a service on a port, until it is told to stop."""

import asyncio
import math
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from nestling.errors import RangeError
from nestling.service.application import Service
from nestling.service.connection import patient


def serve(service: Service, *, host: str = "127.0.0.1", port: int = 8000, say: Callable[[str], None] = print) -> None:
    """Serve until SIGTERM or SIGINT; then refuse what comes with 503, finish what was taken, and return.

    Args:
        service: what ``application`` gave.
        host: the address to listen on.
        port: the port to listen on; 0 takes a free one.
        say: is given one line, with the address, once the service listens.

    Raises:
        RangeError: if the port can't be had.

    Examples:
        >>> from nestling.service import FileEngine, application, serve
        >>> serve(application(FileEngine("digits.onnx")), port=8000)  # doctest: +SKIP
    """
    listener = _listener(host, port)
    asyncio.run(_served(service, listener, say))


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        needed = "an address and a free port of this machine"
        raise RangeError("host and port", f"{host}:{port} ({error})", needed, "Pass --port 0 for a free one.") from None


async def _served(service: Service, listener: socket.socket, say: Callable[[str], None]) -> None:
    config = uvicorn.Config(
        service,
        http=patient(service.options.receive_seconds),
        ws="none",
        lifespan="on",
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(service.options.receive_seconds),
    )
    server = _Server(config)
    loop, stops = asyncio.get_running_loop(), list[asyncio.Task[None]]()

    async def stop() -> None:
        await service.intake.drain()
        server.should_exit = True

    def begin_to_stop() -> None:
        if not stops:
            stops.append(loop.create_task(stop()))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, begin_to_stop)
    host, port, *_ = listener.getsockname()
    address = f"[{host}]" if ":" in host else host
    say(f"http://{address}:{port}/ serves {service.about}. SIGTERM or Ctrl-C stops it.")
    await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """A server that leaves signals to the service."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Catch no signal."""
        yield


_BACKLOG = 2048
