"""A connection whose client must send the head of each request in time."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def patient(seconds: float) -> type[H11Protocol]:
    """The protocol of connections that are closed if the head of a request takes longer to arrive.

    uvicorn itself waits for ever for the rest of a head that was begun, and for a first request.
    """

    class Connection(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._timer: asyncio.TimerHandle | None = None
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._stop()  # what follows is watched from its first byte on, and before that by uvicorn

        def _watch(self) -> None:
            """Watch a head that is not complete, from its first byte on."""
            if self.conn.their_state is not h11.IDLE:
                self._stop()
            elif self._timer is None:
                self._timer = self.loop.call_later(seconds, self._close)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _close(self) -> None:
            if self.conn.our_state is h11.IDLE and not self.transport.is_closing():
                self.transport.write(_TOO_SLOW)
            self.transport.close()

    return Connection


def _response(status: str, reason: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: application/json\r\n"
    body = f'{{"error": "{reason}"}}'
    return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()


_TOO_SLOW = _response("408 Request Timeout", "the head of the request took too long to arrive")
