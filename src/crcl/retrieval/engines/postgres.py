"""PostgreSQL with pgvector: tables NAME_images, NAME_captions and NAME_about. All names in statements are quoted."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np

from crcl.errors import InputError
from crcl.retrieval.engines.base import EXTRA, Item, about_of, plain
from crcl.retrieval.index.folder import About, What

LEAST_INDEXED = 10_000
"""Fewer are compared one by one, which is exact."""
_LONGEST_NAME = 50  # bytes; PostgreSQL cuts names at 63
_MOST_SIZE = 4000  # numbers of a vector that pgvector can index
_MOST_EFFORT = 1000


def open_database(address: str, *, name: str, shown: str, secrets: Sequence[str]) -> "Postgres":
    """The tables of a database, by `postgresql://USER:PASSWORD@HOST/DATABASE` and the first part of their names."""
    try:
        import psycopg
        from pgvector.psycopg import register_vector  # noqa: F401 - only to see whether it is installed
    except ImportError as error:
        raise InputError("PostgreSQL needs the packages psycopg and pgvector", where=shown, hint=EXTRA) from error
    if not 0 < len(name.encode("utf-8", "replace")) <= _LONGEST_NAME or not name.isprintable():
        raise InputError(f"expected the name of a table behind #, of up to {_LONGEST_NAME} bytes", where=shown)
    with _errors(shown, secrets):
        connection = psycopg.connect(address, autocommit=True, connect_timeout=10)
    return Postgres(connection, name, shown, secrets)


@contextmanager
def _errors(shown: str, secrets: Sequence[str]) -> Iterator[None]:
    """Turns errors of the database into messages without credentials."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        lost = isinstance(error, psycopg.OperationalError)
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        for secret in secrets:
            reason = reason.replace(secret, "***")
        what = f"cannot be reached ({reason})" if lost else f"refused by the engine ({reason})"
        raise InputError(what, where=shown, hint="start the server, or check the address" if lost else "") from None


class Postgres:
    """Tables of a database."""

    def __init__(self, connection: Any, name: str, shown: str, secrets: Sequence[str]) -> None:
        self.connection = connection
        self.name = name
        self.shown = shown
        self.secrets = secrets
        self._registered = False

    def _run(self, statement: str, values: Any = None, **tables: str) -> Any:
        """Run a statement in which `{images}` and other parts of names stand for quoted names."""
        from psycopg import sql

        names = {part: sql.Identifier(f"{self.name}_{end}") for part, end in tables.items()}
        with _errors(self.shown, self.secrets):
            return self.connection.execute(sql.SQL(statement).format(**names), values)

    def _vectors(self) -> Any:
        """The type of vectors; the server must have the extension."""
        from pgvector import HalfVector
        from pgvector.psycopg import register_vector

        if not self._registered:
            with _errors(self.shown, self.secrets):
                register_vector(self.connection)
            self._registered = True
        return HalfVector

    def about(self) -> About | None:
        there = self._run("SELECT to_regclass(quote_ident(%s))", [f"{self.name}_about"]).fetchone()
        if there is None or there[0] is None:
            return None
        found = self._run("SELECT content FROM {about}", about="about").fetchone()
        return about_of(found[0], self.shown) if found else None

    def create(self, about: About) -> None:
        from psycopg.types.json import Jsonb

        if self.about() is not None:
            return
        available = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
        if self._run(available).fetchone() is None:
            raise InputError("the server lacks the extension pgvector", where=self.shown, hint="install pgvector there")
        self._run("CREATE EXTENSION IF NOT EXISTS vector")
        size = int(about.size)
        with self.connection.transaction():
            self._run(
                f"CREATE TABLE {{images}} (id uuid PRIMARY KEY, key text NOT NULL, vector halfvec({size}) NOT NULL)",
                images="images",
            )
            self._run(
                "CREATE TABLE {captions} (id uuid PRIMARY KEY, key text NOT NULL, caption text NOT NULL, "
                f"number bigint NOT NULL, vector halfvec({size}) NOT NULL)",
                captions="captions",
            )
            self._run("CREATE INDEX {by_key} ON {captions} (key)", captions="captions", by_key="captions_key")
            self._run("CREATE TABLE {about} (content jsonb NOT NULL)", about="about")
            self._run("INSERT INTO {about} VALUES (%s)", [Jsonb(asdict(about))], about="about")

    def drop(self) -> None:
        with self.connection.transaction():
            for table in ("about", "captions", "images"):
                self._run("DROP TABLE IF EXISTS {table}", table=table)

    def known(self, what: What, ids: Sequence[str]) -> set[str]:
        rows = self._run("SELECT id FROM {table} WHERE id = ANY(%s::uuid[])", [list(ids)], table=what)
        return {str(row[0]) for row in rows.fetchall()}

    def write(self, what: What, items: Sequence[Item], vectors: np.ndarray) -> None:
        from psycopg import sql

        half = self._vectors()
        texts = [
            [plain(item.key)] if item.caption is None else [plain(item.key), plain(item.caption), item.number]
            for item in items
        ]
        rows = [[item.id, *text, half(vector)] for item, text, vector in zip(items, texts, vectors, strict=True)]
        places = sql.SQL(", ").join([sql.Placeholder()] * (3 if what == "images" else 5))
        statement = sql.SQL(
            "INSERT INTO {table} VALUES ({places}) ON CONFLICT (id) DO UPDATE SET vector = EXCLUDED.vector"
        ).format(table=sql.Identifier(f"{self.name}_{what}"), places=places)
        with _errors(self.shown, self.secrets), self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.executemany(statement, rows)

    def finish(self) -> None:
        about = self.about()
        for what in ("images", "captions"):
            if about is not None and about.size <= _MOST_SIZE and self.count(what) >= LEAST_INDEXED:
                self._run(
                    "CREATE INDEX IF NOT EXISTS {graph} ON {table} USING hnsw (vector halfvec_ip_ops)",
                    graph=f"{what}_hnsw",
                    table=what,
                )
            self._run("ANALYZE {table}", table=what)

    def count(self, what: What) -> int:
        return int(self._run("SELECT count(*) FROM {table}", table=what).fetchone()[0])

    def nearest(self, what: What, vector: np.ndarray, k: int) -> list[tuple[Item, float]]:
        half = self._vectors()
        columns = "key, NULL, 0" if what == "images" else "key, caption, number"
        with _errors(self.shown, self.secrets), self.connection.transaction():
            if 4 * k > _MOST_EFFORT:  # more than the graph can give
                self._run("SET LOCAL enable_indexscan = off")
            else:
                self._run(f"SET LOCAL hnsw.ef_search = {max(200, 4 * int(k))}")
            rows = self._run(
                f"SELECT {columns}, -(vector <#> %s) FROM {{table}} ORDER BY vector <#> %s LIMIT %s",
                [half(vector), half(vector), k],
                table=what,
            ).fetchall()
        return [(Item(key, caption, number), float(score)) for key, caption, number, score in rows]

    def captions_of(self, keys: Sequence[str]) -> dict[str, list[str]]:
        names = [plain(key) for key in keys]
        statement = "SELECT key, caption FROM {captions} WHERE key = ANY(%s) ORDER BY number, id"
        found: dict[str, list[str]] = {}
        for key, caption in self._run(statement, [names], captions="captions").fetchall():
            found.setdefault(key, []).append(caption)
        return found

    def vector_of(self, item: Item) -> np.ndarray | None:
        self._vectors()
        what = "images" if item.caption is None else "captions"
        found = self._run("SELECT vector FROM {table} WHERE id = %s", [item.id], table=what).fetchone()
        return None if found is None else np.asarray(found[0].to_numpy(), dtype=np.float32)

    def close(self) -> None:
        self.connection.close()
