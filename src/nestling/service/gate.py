"""The gate: what is checked of every request before it is read as one, and how it is counted and refused."""

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from nestling.service.metrics import Metrics
from nestling.service.options import Serving
from nestling.service.refusals import Refused

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
OPEN = ("/", "/v2/health/live", "/v2/health/ready", "/openapi.json")
"""The paths that need no token: a page that asks for it, and what tells others that the service is there."""


class Gate:
    """An application behind checks: token, number of open requests, size of the body and time to send it.

    The body is read here, so that an application behind it has a whole one or none. Every answer is counted.

    Args:
        app: the application.
        options: the limits.
        metrics: what is counted.
        token: what a caller must send as ``Authorization: Bearer TOKEN``; None lets everybody in.
        routes: the paths to count by; others are counted together.
    """

    def __init__(
        self, app: App, options: Serving, metrics: Metrics, token: str | None, route_of: Callable[[str], str]
    ) -> None:
        self._app, self._options, self._metrics, self._route_of = app, options, metrics, route_of
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._metrics.num_open += 1
        status, began = 500, time.perf_counter()

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check(scope)
            body = await self._body(scope, receive)
            began = time.perf_counter()
            await self._app(scope, _given(body, receive), counted)
        except Refused as refused:
            await send_refusal(refused, counted)
        finally:
            self._metrics.num_open -= 1
            self._metrics.ended(self._route_of(scope["path"]), status, time.perf_counter() - began)

    def _check(self, scope: Message) -> None:
        headers = dict(scope["headers"])
        if self._token is not None and scope["path"] not in OPEN:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self._token):
                raise Refused(401, "send the header Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})
        if self._metrics.num_open > self._options.max_requests:
            raise Refused(429, "too many requests are open: try again later", {"Retry-After": "1"})
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refused(415, "compressed bodies are not taken")

    async def _body(self, scope: Message, receive: Receive) -> bytes:
        """The whole body; what is too much is read and dropped, since a client reads no answer while it sends."""
        chunks, size = [], 0
        try:
            async with asyncio.timeout(self._options.receive_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "the client went away before it had sent the request")
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size <= self._options.max_body:
                        chunks.append(chunk)
                    else:
                        chunks.clear()
                    if not message.get("more_body"):
                        break
                    if size > _DROPPED * self._options.max_body:
                        break
        except TimeoutError:
            seconds = self._options.receive_seconds
            raise Refused(408, f"the request took more than {seconds:g} s to arrive", _CLOSE) from None
        if size > self._options.max_body:
            raise Refused(413, f"a request may have {self._options.max_body:,} bytes", _CLOSE)
        return b"".join(chunks)


def _given(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read already, then what the server has to say."""
    left = [body]

    async def give() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return give


async def send_refusal(refused: Refused, send: Send) -> None:
    """Answer with the status of a refusal, and its line as JSON."""
    body = json.dumps({"error": str(refused)}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refused.headers}
    pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


_CLOSE = {"Connection": "close"}
_DROPPED = 4
"""How many times the largest body is read to be dropped."""
