"""The SQLite file of verdicts in a run folder: opening, locking, reading, and keeping it when a run is replaced."""

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from crcl.errors import InputError

FILE = "verdicts.sqlite"
WAIT = 30.0
"""Seconds to wait for other writers."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS steps (
    step INTEGER PRIMARY KEY AUTOINCREMENT, reviewer TEXT NOT NULL, at TEXT NOT NULL,
    undoes INTEGER UNIQUE REFERENCES steps (step));
CREATE TABLE IF NOT EXISTS verdicts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, step INTEGER NOT NULL REFERENCES steps (step), row INTEGER NOT NULL,
    verdict TEXT NOT NULL, caption TEXT, image TEXT, queue TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS verdicts_by_step ON verdicts (step);
"""
_FORMAT = "1"


@contextmanager
def writing(folder: Path, pairs: str) -> Iterator[sqlite3.Connection]:
    """A transaction that no other writer interrupts, on disk when the block ends; creates the file if need be.

    `pairs` is the digest of the run's pairs; verdicts on other pairs are refused.
    """
    path = folder / FILE
    with _as_input_errors(path):
        while True:
            here = _created(path)
            with closing(_connected(path, f"{path.absolute().as_uri()}?mode=rw")) as connection:
                _waiting(lambda: _prepare(connection))
                _waiting(lambda: connection.execute("BEGIN IMMEDIATE"))
                if not path.exists() or path.stat().st_ino != here:
                    continue  # the run was replaced meanwhile: write to the file of the new one
                connection.execute("INSERT OR IGNORE INTO about VALUES ('format', ?), ('pairs', ?)", (_FORMAT, pairs))
                _check(connection, path, pairs)
                try:
                    yield connection
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
                return


@contextmanager
def reading(folder: Path, pairs: str) -> Iterator[sqlite3.Connection | None]:
    """A connection that only reads, from one moment; None where there is no file."""
    path = folder / FILE
    refuse_links(path)
    if not path.exists():
        yield None
        return
    with _as_input_errors(path), closing(_readable(path)) as connection:
        if _has_tables(connection):
            _check(connection, path, pairs)
            yield connection
        else:  # its first writer has not come further
            yield None


@contextmanager
def keeping_verdicts(folder: Path, pairs: str) -> Iterator[Callable[[Path], None]]:
    """While a run is replaced: no verdict is added to the old folder, and the function yielded copies them to the new.

    Raises an error if the verdicts are on other pairs than the new run has: they would be lost.
    """
    path = folder / FILE
    refuse_links(path)
    if not path.exists():
        yield lambda fresh: None
        return
    if _digest(path) not in ("", pairs):
        raise InputError(
            "the run has verdicts, and they are on other pairs than the new run",
            where=path,
            hint="move the file to another place, or give the run another name",
        )
    with _as_input_errors(path), closing(_connected(path, f"{path.absolute().as_uri()}?mode=rw")) as connection:
        _waiting(lambda: connection.execute("BEGIN IMMEDIATE"))
        yield lambda fresh: _copy(path, fresh / FILE)


def refuse_links(path: Path) -> None:
    """Raise an error if the database is a link, which an untrusted folder may contain, or no file."""
    for name in (path, *(path.with_name(path.name + ending) for ending in ("-wal", "-shm", "-journal"))):
        try:
            mode = name.lstat().st_mode  # once: SQLite removes its files whenever the last connection closes
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(mode):
            raise InputError("a link, which verdicts would be written through", where=name, hint="put the file there")
        if not stat.S_ISREG(mode):
            raise InputError("not a file", where=name, hint="remove it")


def _digest(path: Path) -> str:
    with _as_input_errors(path), closing(_readable(path)) as connection:
        chosen = "SELECT value FROM about WHERE key = 'pairs'"
        found = connection.execute(chosen).fetchone() if _has_tables(connection) else None
    return str(found[0]) if found else ""


def _has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'verdicts_by_step'").fetchone() is not None


def _copy(path: Path, target: Path) -> None:
    with _as_input_errors(path), closing(_readable(path)) as source, closing(sqlite3.connect(target)) as copied:
        source.backup(copied)


def _created(path: Path) -> int:
    """The number of the file on its disk; it is created if there is none.

    Never opened here: closing a file takes from the whole process the locks that SQLite has on it.
    """
    refuse_links(path)
    if not path.exists():
        empty = path.with_name(f".{path.name}-{os.getpid()}-{threading.get_ident()}.tmp")
        empty.touch()
        try:
            with suppress(FileExistsError):
                os.link(empty, path)
        finally:
            empty.unlink(missing_ok=True)
    return path.stat().st_ino


def _connected(path: Path, uri: str) -> sqlite3.Connection:
    refuse_links(path)
    connection = sqlite3.connect(uri, uri=True, timeout=WAIT, isolation_level=None)
    for setting in ("synchronous = FULL", "foreign_keys = ON", "trusted_schema = OFF"):
        connection.execute(f"PRAGMA {setting}")
    return connection


def _readable(path: Path) -> sqlite3.Connection:
    """A connection that only reads; also in a folder that cannot be written, where a log of changes cannot be made."""
    uri = path.absolute().as_uri()

    def begin(options: str) -> sqlite3.Connection:
        connection = _connected(path, f"{uri}?{options}")
        try:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    try:
        return _waiting(lambda: begin("mode=ro"))
    except sqlite3.OperationalError as error:
        if "unable to open" not in str(error) and "readonly" not in str(error):
            raise
        return begin("immutable=1")


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    if not _has_tables(connection):
        connection.execute("BEGIN IMMEDIATE")  # all of the tables or none
        for statement in filter(str.strip, _SCHEMA.split(";")):
            connection.execute(statement)
        connection.execute("COMMIT")


def _check(connection: sqlite3.Connection, path: Path, pairs: str) -> None:
    about = dict(connection.execute("SELECT key, value FROM about").fetchall())
    if about.get("format", _FORMAT) != _FORMAT:
        what = f"verdicts of format {about['format']}, this version reads format {_FORMAT}"
        raise InputError(what, where=path, hint="use the version of crcl that wrote it")
    if about.get("pairs", pairs) != pairs:
        raise InputError(
            "verdicts on other pairs than those of the run", where=path, hint="put it beside the run that it belongs to"
        )


def _waiting(act: Callable[[], Any]) -> Any:
    """The result of `act`, tried again while another writer opens or closes the file: SQLite does not wait for that."""
    until = time.monotonic() + WAIT
    while True:
        try:
            return act()
        except sqlite3.OperationalError as error:
            if not any(word in str(error) for word in ("locked", "busy")) or time.monotonic() > until:
                raise
            time.sleep(0.01)


@contextmanager
def _as_input_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise InputError(f"cannot be read or written as verdicts ({error})", where=path) from error
    except sqlite3.DatabaseError as error:
        raise InputError(f"damaged ({error})", where=path, hint="put a copy of it there, or remove it") from error
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror or error})", where=path) from error
