"""Addresses of engines: which engine, and where; what is shown of them has no credentials."""

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from crcl.errors import InputError
from crcl.retrieval.engines.base import Engine

FORMS = "qdrant://HOST:PORT/NAME, qdrant+local:FOLDER/NAME or postgresql://USER@HOST/DATABASE#NAME"
NO_ADDRESS = "not the address of an engine"
_SCHEMES = ("qdrant", "qdrants", "qdrant+local", "postgresql", "postgres")


def is_address(text: Any) -> bool:
    """Whether a text is the address of an engine rather than a path."""
    return isinstance(text, str) and text.partition(":")[0] in _SCHEMES and ":" in text


def open_engine(address: str, *, make: bool = False) -> Engine:
    """Connect to the engine at an address; `make` makes the folder of one that is a folder."""
    scheme, _, rest = address.partition(":")
    if scheme not in _SCHEMES or not rest:
        raise InputError(NO_ADDRESS, where=without_credentials(address), hint=f"expected {FORMS}")
    if scheme == "qdrant+local":
        from crcl.retrieval.engines.qdrant import open_local

        return open_local(Path(rest), shown=address, make=make)
    if scheme in ("qdrant", "qdrants"):
        from crcl.retrieval.engines.qdrant import open_server

        return open_server(_split(address), shown=without_credentials(address), secure=scheme == "qdrants")
    from crcl.retrieval.engines.postgres import open_database

    parts = _split(address)
    whole = urlunsplit(parts._replace(fragment=""))
    return open_database(
        whole, name=unquote(parts.fragment) or "crcl", shown=without_credentials(address), secrets=secrets_in(address)
    )


def without_credentials(address: str) -> str:
    """The address without a password, and without what could hold one."""
    scheme, mark, rest = address.partition("://")
    if not mark:
        return address
    place, _, name = rest.partition("#")
    place = place.partition("?")[0]
    login, at, host = place.rpartition("@")
    user = login.partition(":")[0]
    return f"{scheme}://{user}{at if user else ''}{host}{'#' if name else ''}{name}"


def secrets_in(address: str) -> tuple[str, ...]:
    """What must appear in no message: the password as it is written and as it is meant, and the query."""
    rest = address.partition("://")[2].partition("#")[0]
    place, _, query = rest.partition("?")
    password = place.rpartition("@")[0].partition(":")[2]
    values = [value for part in query.split("&") if part for value in [part.partition("=")[2]]]
    found = {text for value in (password, *values) for text in (value, unquote(value)) if text}
    return tuple(sorted(found, key=len, reverse=True))


def _split(address: str) -> Any:
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError as error:
        where = without_credentials(address)
        raise InputError("not a valid address", where=where, hint=f"expected {FORMS}") from error
    return parts
