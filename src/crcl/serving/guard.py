"""What every request must pass before it is answered: host, token, origin, type and size of its body.

A page of a stranger in the same browser can send requests to this machine. Its requests name another host or origin,
and are refused. Answers tell the browser to run and load nothing but the files of this page.
"""

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BYTES = 1_000_000
"""Longer bodies are refused."""
SECONDS = 15.0
"""A body must arrive within this time."""
EVERYWHERE = ("0.0.0.0", "::")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of every answer."""


@dataclass(frozen=True)
class Door:
    """The address that is served, and the token that opens it."""

    host: str
    port: int
    token: str | None = None
    name: str = ""
    """The host as the user named it."""

    @property
    def url(self) -> str:
        """The address to open in a browser, with the token if there is one."""
        host = "127.0.0.1" if self.host == "0.0.0.0" else "::1" if self.host == "::" else self.host
        query = f"?{urlencode({'token': self.token})}" if self.token else ""
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/{query}"

    @property
    def cookie(self) -> str:
        """The name of the cookie with the token: cookies of one host are shared by its ports."""
        return f"crcl-{self.port}"

    def knows(self, header: str) -> bool:
        """Whether a Host header names this server."""
        name, _, port = header.strip().lower().rpartition(":") if not header.endswith("]") else (header, "", "")
        if not name:
            name, port = header.strip().lower(), ""
        if (port or "80") != str(self.port):
            return False
        name = name.removeprefix("[").removesuffix("]").removesuffix(".")
        if name in ("localhost", self.host.lower(), self.name.lower()) and name:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return self.host in EVERYWHERE and name in (socket.gethostname().lower(), socket.getfqdn().lower())
        return self.host in EVERYWHERE or (address.is_loopback and is_loopback(self.host))

    def opens(self, given: str) -> bool:
        """Whether this is the token; takes the same time for every wrong one."""
        return self.token is None or hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _RefusedError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Guard:
    """Refuses requests that the page did not send, and adds headers to all answers."""

    def __init__(self, app: App, door: Door) -> None:
        self.app = app
        self.door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        guarded = _with_headers(scope, send)
        headers = _headers(scope)
        try:
            self._check_host(headers)
            location = self._check_token(scope, headers)
            if location is not None:
                await _redirect(guarded, location, self.door)
                return
            if scope["method"] not in ("GET", "HEAD"):
                _check_origin(headers)
                receive = await _read(receive, headers)
        except _RefusedError as refused:
            await _answer(guarded, refused.status, str(refused))
            return
        await self.app(scope, receive, guarded)

    def _check_host(self, headers: dict[str, list[str]]) -> None:
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self.door.knows(hosts[0]):
            raise _RefusedError(400, "This server does not have that name.")

    def _check_token(self, scope: Scope, headers: dict[str, list[str]]) -> str | None:
        """Refuse a request without the token; returns where to go on after the first visit, which names it."""
        if self.door.token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        named = [value for name, value in query if name == "token"]
        bearer = [value[7:] for value in headers.get("authorization", []) if value[:7].lower() == "bearer "]
        cookies = [
            value
            for header in headers.get("cookie", [])
            for name, _, value in (part.strip().partition("=") for part in header.split(";"))
            if name == self.door.cookie
        ]
        if not any(self.door.opens(given) for given in [*named, *bearer, *cookies]):
            raise _RefusedError(401, "This page needs its token: open the address that was shown when it was started.")
        if not named or scope["method"] not in ("GET", "HEAD"):
            return None
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        path = "/" + scope["path"].lstrip("/\\") if scope["path"].isascii() and scope["path"].isprintable() else "/"
        return path + (f"?{rest}" if rest else "")


def _headers(scope: Scope) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _check_origin(headers: dict[str, list[str]]) -> None:
    """Refuse what the page of another site sent. A program that is no browser sends no origin."""
    host = headers["host"][0].strip().lower()
    for origin in headers.get("origin", []):
        if origin.lower() not in (f"http://{host}", f"https://{host}"):
            raise _RefusedError(403, "This request comes from another page.")
    if any(site not in ("same-origin", "none") for site in headers.get("sec-fetch-site", [])):
        raise _RefusedError(403, "This request comes from another page.")
    kinds = headers.get("content-type", [""])
    if kinds[0].partition(";")[0].strip().lower() != "application/json":
        raise _RefusedError(415, "Expected application/json.")


async def _read(receive: Receive, headers: dict[str, list[str]]) -> Receive:
    """Read a body of limited size in limited time, and give it to the app at once."""
    length = headers.get("content-length", ["0"])[0]
    if not length.isdigit() or int(length) > MOST_BYTES:
        raise _RefusedError(413, f"More than {MOST_BYTES:,} bytes.")
    body = bytearray()
    try:
        async with asyncio.timeout(SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise _RefusedError(400, "The request ended early.")
                body += message.get("body", b"")
                if len(body) > MOST_BYTES:
                    raise _RefusedError(413, f"More than {MOST_BYTES:,} bytes.")
                if not message.get("more_body"):
                    break
    except TimeoutError:
        raise _RefusedError(408, "The request took too long.") from None
    whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def again() -> Message:
        return whole.pop() if whole else await receive()

    return again


def _with_headers(scope: Scope, send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name.lower() for name, _ in message.get("headers", [])}
            extra = dict(HEADERS)
            if not scope["path"].startswith("/images/"):
                extra["cache-control"] = "no-store"
            added = [(name.encode(), value.encode()) for name, value in extra.items() if name.encode() not in own]
            message["headers"] = [*message.get("headers", []), *added]
        await send(message)

    return sending


async def _answer(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text.encode())).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


async def _redirect(send: Send, location: str, door: Door) -> None:
    cookie = f"{door.cookie}={door.token}; HttpOnly; SameSite=Lax; Path=/"
    headers = [(b"location", location.encode("latin-1", "replace")), (b"set-cookie", cookie.encode())]
    await send({"type": "http.response.start", "status": 303, "headers": [*headers, (b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
