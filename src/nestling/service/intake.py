"""The intake: takes requests while a service runs, and none once it stops, when it waits for those that it took."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from nestling.service.dispatcher import Answer, Dispatcher, Wish
from nestling.service.refusals import Refused
from nestling.service.width import Arrays


class Intake:
    """What stands before a dispatcher; ``draining`` is true once it takes no more requests."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher, self.draining = dispatcher, False
        self._taken, self._none_taken = 0, asyncio.Event()
        self._none_taken.set()

    @contextmanager
    def taking(self) -> Iterator[None]:
        """For the time in which a request that was taken is answered.

        Raises:
            Refused: if no more requests are taken.
        """
        if self.draining:
            raise Refused(503, "the service is stopping", {"Connection": "close", "Retry-After": "5"})
        self._taken += 1
        self._none_taken.clear()
        try:
            yield
        finally:
            self._taken -= 1
            if not self._taken:
                self._none_taken.set()

    async def answer(self, inputs: Arrays, wish: Wish) -> Answer:
        """The answer to the inputs of a request that was taken."""
        return await self.dispatcher.answer(inputs, wish)

    async def drain(self) -> None:
        """Take no more requests, and finish those that were taken."""
        self.draining = True
        await self._none_taken.wait()
        await self.dispatcher.stop()

    @asynccontextmanager
    async def running(self, _: object) -> AsyncIterator[None]:
        """The life of the application that it belongs to."""
        self.dispatcher.start()
        yield
        await self.drain()
