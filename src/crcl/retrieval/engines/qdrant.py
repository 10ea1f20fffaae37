"""Qdrant: a collection of images, one of captions, and a small one that says which run they are of.

The key of a server is read from the environment variable QDRANT_API_KEY, and is written nowhere.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from crcl.errors import InputError
from crcl.retrieval.engines.base import EXTRA, Item, about_of, plain
from crcl.retrieval.index.folder import About, What

PORT = 6333
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_LOCAL = "meta.json"  # in every folder of the local mode
_SECONDS = 60
_MOST = 100_000  # captions of an answer's images


def open_server(parts: Any, *, shown: str, secure: bool) -> "Qdrant":
    """A collection of a server, by the parts of `qdrant://HOST:PORT/NAME`."""
    if parts.username or parts.password:
        raise InputError("an address with a key", where=shown, hint="put the key into the variable QDRANT_API_KEY")
    name = _checked(parts.path.strip("/"), shown)
    client = _client(
        url=f"{'https' if secure else 'http'}://{parts.hostname or 'localhost'}:{parts.port or PORT}",
        api_key=os.environ.get("QDRANT_API_KEY"),
        timeout=_SECONDS,
        check_compatibility=False,
        shown=shown,
    )
    return Qdrant(client, name, shown)


def open_local(path: Path, *, shown: str, make: bool) -> "Qdrant":
    """A collection in a folder, by the client's local mode: for trials with a few thousand items."""
    name = _checked(path.name, shown)
    if not make and not (path.parent / _LOCAL).is_file():  # the client would make it
        raise InputError(f"there is no Qdrant in {path.parent}", where=shown, hint="{index_to()} makes it")
    return Qdrant(_client(path=str(path.parent), shown=shown), name, shown, local=True)


def _client(*, shown: str, **options: Any) -> Any:
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise InputError("Qdrant needs the package qdrant-client", where=shown, hint=EXTRA) from error
    with _errors(shown):
        return QdrantClient(**options)


def _checked(name: str, shown: str) -> str:
    if not _NAME.fullmatch(name):
        raise InputError("expected the name of a collection at the end, of letters, digits, - and _", where=shown)
    return name


@contextmanager
def _errors(shown: str) -> Iterator[None]:
    """Turns errors of the client into messages."""
    from qdrant_client.http.exceptions import ApiException, ResponseHandlingException

    try:
        yield
    except ResponseHandlingException as error:
        raise InputError(f"cannot be reached ({error.source})", where=shown, hint="start the server") from error
    except ApiException as error:
        reason = f"{getattr(error, 'status_code', '')} {getattr(error, 'reason_phrase', '')}".strip()
        raise InputError(f"refused by the engine ({reason or type(error).__name__})", where=shown) from error
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        what = "is used by another process" if "already accessed" in str(error) else f"cannot be used ({error})"
        raise InputError(what, where=shown) from error


class Qdrant:
    """Collections NAME (images), NAME-captions and NAME-about."""

    def __init__(self, client: Any, name: str, shown: str, *, local: bool = False) -> None:
        self.client = client
        self.name = name
        self.shown = shown
        self.local = local

    def _collection(self, what: What) -> str:
        return self.name if what == "images" else f"{self.name}-captions"

    def about(self) -> About | None:
        with _errors(self.shown):
            if not self.client.collection_exists(f"{self.name}-about"):
                return None
            found = self.client.retrieve(f"{self.name}-about", [0], with_payload=True)
        return about_of(found[0].payload, self.shown) if found else None

    def create(self, about: About) -> None:
        from qdrant_client import models

        def made(size: int) -> Any:
            return models.VectorParams(
                size=size, distance=models.Distance.DOT, datatype=models.Datatype.FLOAT16, on_disk=True
            )

        collections = (self._collection("images"), self._collection("captions"))
        ours = self.about() is not None
        with _errors(self.shown):
            there = {name for name in collections if self.client.collection_exists(name)}
            if there and not ours:
                raise InputError(f"a collection {min(there)} exists already", where=self.shown)
            if not ours:  # first, so that an interrupted start can be resumed
                if not self.client.collection_exists(f"{self.name}-about"):
                    self.client.create_collection(f"{self.name}-about", vectors_config=made(1))
                point = models.PointStruct(id=0, vector=[0.0], payload=asdict(about))
                self.client.upsert(f"{self.name}-about", [point])
            for name in collections:
                if name not in there:
                    self.client.create_collection(name, vectors_config=made(about.size))
            if not self.local:
                self.client.create_payload_index(self._collection("captions"), "key", field_schema="keyword")

    def drop(self) -> None:
        with _errors(self.shown):
            for collection in (f"{self.name}-about", self._collection("captions"), self._collection("images")):
                self.client.delete_collection(collection)

    def known(self, what: What, ids: Sequence[str]) -> set[str]:
        with _errors(self.shown):
            found = self.client.retrieve(self._collection(what), list(ids), with_payload=False, with_vectors=False)
        return {str(point.id) for point in found}

    def write(self, what: What, items: Sequence[Item], vectors: np.ndarray) -> None:
        from qdrant_client import models

        points = [
            models.PointStruct(id=item.id, vector=vector.tolist(), payload=_payload(item))
            for item, vector in zip(items, vectors, strict=True)
        ]
        with _errors(self.shown):
            self.client.upsert(self._collection(what), points, wait=True)

    def finish(self) -> None:
        """Qdrant builds its graph by itself."""

    def count(self, what: What) -> int:
        with _errors(self.shown):
            return int(self.client.count(self._collection(what), exact=True).count)

    def nearest(self, what: What, vector: np.ndarray, k: int) -> list[tuple[Item, float]]:
        from qdrant_client import models

        effort = None if self.local else models.SearchParams(hnsw_ef=max(256, 4 * k))
        with _errors(self.shown):
            found = self.client.query_points(
                self._collection(what), query=vector.tolist(), limit=k, search_params=effort, with_payload=True
            )
        return [(_item(point.payload), float(point.score)) for point in found.points]

    def captions_of(self, keys: Sequence[str]) -> dict[str, list[str]]:
        from qdrant_client import models

        names = [plain(key) for key in keys]
        chosen = models.Filter(must=[models.FieldCondition(key="key", match=models.MatchAny(any=names))])
        with _errors(self.shown):
            points, _ = self.client.scroll(
                self._collection("captions"), scroll_filter=chosen, limit=_MOST, with_payload=True
            )
        found: dict[str, list[str]] = {}
        for item in sorted((_item(point.payload) for point in points), key=lambda item: item.number):
            found.setdefault(item.key, []).append(str(item.caption))
        return found

    def vector_of(self, item: Item) -> np.ndarray | None:
        what: What = "images" if item.caption is None else "captions"
        with _errors(self.shown):
            found = self.client.retrieve(self._collection(what), [item.id], with_vectors=True)
        return np.array(found[0].vector, dtype=np.float32) if found else None

    def close(self) -> None:
        self.client.close()


def _payload(item: Item) -> dict[str, Any]:
    if item.caption is None:
        return {"key": plain(item.key)}
    return {"key": plain(item.key), "caption": plain(item.caption), "number": item.number}


def _item(payload: dict[str, Any]) -> Item:
    return Item(str(payload["key"]), payload.get("caption"), int(payload.get("number", 0)))
