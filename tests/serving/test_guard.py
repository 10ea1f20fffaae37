"""Only the page's own requests are answered: host, token, origin, type and size are checked."""

import asyncio
import socket
from typing import Any

import httpx
import pytest

from crcl.errors import InputError
from crcl.serving.guard import MOST_BYTES, Door, Guard
from crcl.serving.server import check_address, listen

TOKEN = "secret12345"


async def app(scope: Any, receive: Any, send: Any) -> None:
    body = (await receive())["body"] if scope["method"] == "POST" else b"hello"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def ask(
    method: str = "GET", path: str | httpx.URL = "/", *, door: Door | None = None, **options: Any
) -> httpx.Response:
    guard = Guard(app, door or Door("127.0.0.1", 8765))

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=guard)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8765") as client:
            return await client.request(method, path, **options)

    return asyncio.run(asked())


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "LOCALHOST:8765", "[::1]:8765"])
def test_this_machine_by_any_of_its_own_names_is_answered(host: str) -> None:
    assert ask(headers={"host": host}).text == "hello"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1", "127.0.0.1:80", "10.0.0.1:8765", ""]
)
def test_another_host_gets_400(host: str) -> None:
    assert ask(headers={"host": host}).status_code == 400


def test_a_host_is_known_by_the_name_that_the_user_gave_it() -> None:
    door = Door("192.0.2.7", 8765, TOKEN, name="photos.example")
    assert all(door.knows(host) for host in ("photos.example:8765", "192.0.2.7:8765", "Photos.Example.:8765"))
    assert not any(door.knows(host) for host in ("example:8765", ":8765", "photos.example:80"))


def test_every_answer_forbids_scripts_and_styles_but_those_of_the_page() -> None:
    for answer in (ask(), ask(headers={"host": "evil.example"})):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_a_post_of_another_page_is_refused() -> None:
    json = {"content-type": "application/json"}
    assert ask("POST", content="{}", headers=json).text == "{}"
    assert ask("POST", content="{}", headers={**json, "origin": "http://127.0.0.1:8765"}).status_code == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:8765.evil.example"):
        assert ask("POST", content="{}", headers={**json, "origin": origin}).status_code == 403
    assert ask("POST", content="{}", headers={**json, "sec-fetch-site": "cross-site"}).status_code == 403
    assert ask("POST", content="{}", headers={"content-type": "text/plain"}).status_code == 415


def test_long_bodies_get_413_whether_or_not_they_say_so() -> None:
    async def parts() -> Any:
        for _ in range(20):
            yield b"x" * (MOST_BYTES // 10)

    json = {"content-type": "application/json"}
    assert ask("POST", content="x" * (MOST_BYTES + 1), headers=json).status_code == 413
    assert ask("POST", content=parts(), headers=json).status_code == 413


def test_a_token_is_needed_where_one_is_set_and_leaves_the_address_after_the_first_visit() -> None:
    door = Door("127.0.0.1", 8765, TOKEN)
    assert door.url == f"http://127.0.0.1:8765/?token={TOKEN}"
    assert ask(door=door).status_code == 401
    for wrong in ("secret12346", "", "é", TOKEN.upper()):
        assert ask(path="/", params={"token": wrong}, door=door).status_code == 401
    first = ask(path="/api/x", params={"token": TOKEN, "a": "b"}, door=door)
    assert (first.status_code, first.headers["location"]) == (303, "/api/x?a=b")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite" in cookie
    assert ask(door=door, headers={"cookie": cookie.partition(";")[0]}).text == "hello"
    assert ask(door=door, headers={"authorization": f"Bearer {TOKEN}"}).text == "hello"
    assert ask(door=door, headers={"cookie": "crcl-8765=wrong"}).status_code == 401
    away = httpx.URL("http://127.0.0.1:8765", raw_path=f"//evil.example/?token={TOKEN}".encode())
    assert ask(path=away, door=door).headers["location"] == "/evil.example/"


def test_an_address_that_others_reach_needs_a_token() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        check_address(host, None)
    check_address("0.0.0.0", TOKEN)
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        with pytest.raises(InputError, match="other machines"):
            check_address(host, None)
    for token in ("", "short", "has spaces in it", "semi;colon12"):
        with pytest.raises(InputError, match="token"):
            check_address("127.0.0.1", token)


def test_a_port_in_use_is_told() -> None:
    taken = listen("127.0.0.1", 0)
    with pytest.raises(InputError, match=r"cannot listen.*name another port"):
        listen("127.0.0.1", taken.getsockname()[1])
    taken.close()
    for host in ("192.0.2.1", "nowhere.invalid"):
        with pytest.raises(InputError, match=r"cannot listen.*name an address of this machine as host"):
            listen(host, 0)
    with pytest.raises(InputError, match="65535"):
        listen("127.0.0.1", 70000)


def test_answers_are_sent_at_once_and_wait_for_no_acknowledgment() -> None:
    async def accepted() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        class Connection(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                connected = transport.get_extra_info("socket")
                found.set_result(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                transport.close()

        server = await asyncio.get_running_loop().create_server(Connection, sock=listen("127.0.0.1", 0))
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.close()
            return await found

    assert asyncio.run(accepted()) != 0
