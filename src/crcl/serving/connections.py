"""Connections that end when a client is too slow, so that many slow ones do not keep others out."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 60.0
"""A request must arrive whole, and its answer be taken, within this time."""


class Connection(H11Protocol):
    """An HTTP connection with a deadline for each request and its answer."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, and wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; with the first part its time begins."""
        if self._deadline is None:
            self._wait()
        super().data_received(data)

    def on_response_complete(self) -> None:
        """An answer was given; the next request, if it is here already, has time of its own."""
        self._end_wait()
        super().on_response_complete()
        if not self.cycle.response_complete:
            self._wait()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more was asked: close, without waiting for a client that does not take its answer."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._end_wait()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._deadline = self.loop.call_later(SECONDS, self._give_up)

    def _end_wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self, *_: Any) -> None:
        self._deadline = None
        self.transport.abort()
