"""A server of the page: a socket, an app, and a thread or the caller's own until Ctrl-C."""

import errno
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import uvicorn

from crcl.errors import InputError
from crcl.serving.app import Site, make_app
from crcl.serving.connections import Connection
from crcl.serving.guard import Door, is_loopback

SHORTEST_TOKEN = 8
_CONNECTIONS = 500
_STOPPING = 3


class Server:
    """A page that is served. As a context manager it stops at the end of the block.

    Attributes:
        url: The address to open in a browser, with the token if there is one.
        app: The app, for a server of your own.
    """

    def __init__(self, site: Site, listening: socket.socket, *, host: str, token: str | None) -> None:
        address = listening.getsockname()
        self._socket = listening
        self._door = Door(address[0], address[1], token, name=host)
        self.app = make_app(site, self._door)
        self.folder = site.review.verdicts.folder
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                self.app,
                log_level="error",
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                http=Connection,
                ws="none",
                limit_concurrency=_CONNECTIONS,
                timeout_keep_alive=10,
                timeout_graceful_shutdown=_STOPPING,
            )
        )
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return self._door.url

    def start(self) -> "Server":
        """Serve from a thread of its own."""
        options: dict[str, Any] = {"sockets": [self._socket]}
        self._thread = threading.Thread(target=self._uvicorn.run, kwargs=options, daemon=True)
        self._thread.start()
        return self

    def wait(self, ready: Callable[[str], None] | None = None) -> None:
        """Serve until Ctrl-C; `ready` is called with the address."""
        if ready is not None:
            ready(self.url)
        try:
            self._uvicorn.run(sockets=[self._socket])
        except KeyboardInterrupt:  # raised again by uvicorn after it has stopped
            pass
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Answer what has arrived, and stop."""
        self._uvicorn.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=2 * _STOPPING)
        self._socket.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def check_address(host: str, token: str | None) -> None:
    """Refuse, before long work, an address that others could use without a token."""
    if token is None and not is_loopback(host):
        raise InputError(f"{host} can be reached from other machines", hint="give a {token}, or leave {host} out")
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isalnum()):
        raise InputError(f"a token has at least {SHORTEST_TOKEN} letters and digits, and nothing else")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; port 0 is a free one."""
    if not 0 <= port <= 65535:
        raise InputError(f"a port is a number from 0 to 65535, got {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio switches off Nagle's algorithm only where the protocol is named: else answers wait 40 ms for an ACK
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(2048)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        elsewhere = not isinstance(error, OSError) or error.errno not in (errno.EADDRINUSE, errno.EACCES)
        hint = "name an address of this machine as {host}" if elsewhere else "name another {port}; 0 is a free one"
        raise InputError(f"cannot listen at {host} port {port} ({reason})", hint=hint) from error
    return made
