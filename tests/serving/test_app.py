"""The JSON API: what it answers, what it refuses, and that nothing makes it fail."""

import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from reviewed import fresh, hostile, plant, served
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from crcl.auditing.result import Audit
from crcl.runs.verdicts import Verdicts
from crcl.serving import connections

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(audit: Audit) -> Iterator[httpx.Client]:
    with served(audit) as (_, client):
        yield client


def judge(client: httpx.Client, row: int, verdict: str = "wrong", who: str = "ann", **more: Any) -> httpx.Response:
    step = {"reviewer": who, "queue": "worst", "verdicts": [{"row": row, "verdict": verdict, **more}]}
    return client.post("/api/verdicts", json=step)


def test_the_first_pair_of_the_queue_is_the_worst_suspect_with_all_that_speaks_against_it(
    client: httpx.Client, audit: Audit
) -> None:
    worst = audit.table.slice(0, 1).to_pylist()[0]
    found = client.get("/api/queues/worst/0").json()
    assert (found["row"], found["caption"], found["name"]) == (worst["row"], worst["caption"], worst["image"])
    assert found["correspondence"] == pytest.approx(worst["correspondence"], rel=1e-3)
    assert found["p_wrong"] == pytest.approx(worst["p_wrong"], rel=1e-3)
    assert "; ".join(found["reasons"]) == (worst["reason"] or "")
    assert [one["caption"] for one in found["captions"]] == [
        worst[f"caption_{place}"] for place in (1, 2, 3) if worst[f"caption_{place}"]
    ]
    assert found["images"][0]["name"] == worst["image_1"]
    assert len(found["siblings"]) == 1  # the image's other caption


def test_pairs_of_the_random_sample_do_not_tell_what_the_audit_thinks(client: httpx.Client) -> None:
    found = client.get("/api/queues/sample/3").json()
    assert found["blind"]
    told = ("correspondence", "p_wrong", "suspect", "similarity", "fix")
    assert [found[name] for name in told] == [None] * len(told)
    assert found["reasons"] == found["captions"] == found["images"] == []


def test_a_verdict_is_stored_before_the_answer_and_moves_the_queue_on(client: httpx.Client, audit: Audit) -> None:
    fresh(audit)
    rows = [client.get(f"/api/queues/worst/{place}").json()["row"] for place in (0, 1)]
    assert judge(client, rows[0]).json()["saved"] == 1
    assert Verdicts.open(audit.run).current()[rows[0]].verdict == "wrong"
    assert client.get("/api/queues/worst/next").json()["place"] == 1
    judge(client, rows[1], "right")
    assert client.get("/api/queues/worst/next", params={"after": 1}).json()["place"] == 2
    undone = client.post("/api/undo", json={"reviewer": "ann"}).json()
    assert [(one["row"], one["place"]) for one in undone["undone"]] == [(rows[1], 1)]
    assert client.post("/api/undo", json={"reviewer": "bob"}).json()["count"] == 0  # steps of others stay


def test_a_taken_caption_and_a_relink_are_stored_as_the_data_has_them(client: httpx.Client, audit: Audit) -> None:
    fresh(audit)
    pairs = audit.findings.pairs
    found = client.get("/api/queues/worst/2").json()
    judge(client, found["row"], take=found["captions"][0]["number"])
    assert Verdicts.open(audit.run).current()[found["row"]].caption == pairs.captions[found["captions"][0]["number"]]
    judge(client, found["row"], image=found["images"][0]["image"])
    assert Verdicts.open(audit.run).current()[found["row"]].image == found["images"][0]["name"]


def test_reviewers_who_differ_are_listed(client: httpx.Client, audit: Audit) -> None:
    fresh(audit)
    row = client.get("/api/queues/worst/0").json()["row"]
    judge(client, row, "right", "ann")
    judge(client, row, "wrong", "bob")
    found = client.get("/api/disagreements").json()
    assert [(one["reviewer"], one["verdict"]) for one in found["pairs"][0]["said"]] == [
        ("ann", "right"),
        ("bob", "wrong"),
    ]
    assert client.get("/api/pairs", params={"verdict": "disagreement"}).json()["rows"] == [row]


def test_verdicts_on_the_sample_measure_precision_beside_the_estimate(client: httpx.Client, audit: Audit) -> None:
    fresh(audit)
    total = client.get("/api/progress").json()["queues"]["sample"]["total"]
    suspects = set(audit.suspects["row"].to_pylist())
    rows = [client.get(f"/api/queues/sample/{place}").json()["row"] for place in range(total)]
    said = [{"row": row, "verdict": "wrong" if row in suspects else "right"} for row in rows]
    client.post("/api/verdicts", json={"reviewer": "ann", "queue": "sample", "verdicts": said})
    found = client.get("/api/progress").json()
    assert found["queues"]["sample"]["done"] == total
    assert found["measured"]["precision"]["value"] == found["measured"]["recall"]["value"] == 1
    assert found["measured"]["recall"]["low"] < 1
    assert audit.recall is not None
    assert found["estimated"]["recall"]["value"] == pytest.approx(float(audit.recall), abs=1e-3)
    assert (found["estimated"]["precision"] is None) == (audit.precision is None)  # its interval may say nothing


def test_the_grid_filters_by_reason_words_and_verdict(client: httpx.Client, audit: Audit) -> None:
    fresh(audit)
    for reason, count in audit.reasons.items():
        assert client.get("/api/pairs", params={"reason": reason}).json()["total"] == count
    word = audit.findings.pairs.captions[0].split()[1]
    found = client.get("/api/pairs", params={"queue": "all", "text": word.upper(), "count": 200}).json()["pairs"]
    assert found
    assert all(word in one["caption"] or word in one["name"] for one in found)
    low = client.get("/api/pairs", params={"queue": "all", "below": 0.1, "count": 200}).json()
    assert low["total"] == int((audit.correspondence < 0.1).sum())
    row = found[0]["row"]
    judge(client, row, "unsure")
    assert client.get("/api/pairs", params={"queue": "all", "verdict": "unsure"}).json()["rows"] == [row]


def test_search_finds_the_image_that_a_sentence_describes(client: httpx.Client, audit: Audit) -> None:
    sentence, image = plant(audit)
    found = client.get("/api/search", params={"q": sentence, "k": 10}).json()["images"]
    assert image in [one["image"] for one in found]
    beside = client.get(f"/api/images/{image}").json()
    assert sentence in [one["caption"] for one in beside["captions"]]
    assert len(beside["matching"]) == len(beside["near"]) == 12
    assert image not in [one["image"] for one in beside["near"]]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/", "/images/../pairs.csv",
        "/images/%2e%2e%2fpairs.csv", "/images//etc/passwd", "/pairs.csv", "//etc/passwd", "/docs/", "/redoc",
        "/images/999999", "/api/images/999999", "/api/queues/worst/999999", "/api/pairs/999999", "/static/page.js/",
    ],
)  # fmt: skip
def test_tricks_with_paths_get_404(client: httpx.Client, path: str) -> None:
    answer = httpx.get(httpx.URL(str(client.base_url), raw_path=path.encode()))
    assert answer.status_code in (404, 422), answer.text
    assert answer.status_code == 404 or path.startswith("/images/%2e")


def test_numbers_and_texts_out_of_bounds_are_refused(client: httpx.Client, audit: Audit) -> None:
    for path in ("/api/search?q=a&k=1000000", "/api/search?q=", "/api/pairs?count=100000", "/images/-1", "/images/x"):
        assert client.get(path).status_code == 422, path
    row = client.get("/api/queues/worst/0").json()["row"]
    assert judge(client, 10**9).status_code == 422
    assert judge(client, row, take=10**6).status_code == 422
    assert judge(client, row, "right", caption="another").status_code == 422
    assert judge(client, row, caption="a\ud800b".encode("utf-8", "replace").decode()).status_code in (200, 422)
    assert judge(client, row, who=" ").status_code == 422


def test_the_description_can_be_read_on_a_page_that_loads_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    for kind in ("src", "href"):
        named = re.findall(rf'{kind}="([^"]+)"', page.text)
        assert named
        assert all(client.get(name).status_code == 200 for name in named)
    described = client.get("/openapi.json").json()
    assert all(method["description"] for methods in described["paths"].values() for method in methods.values())


def test_hostile_texts_are_answered_as_text(audit: Audit) -> None:
    fresh(audit)
    with served(hostile(audit)) as (_, client):
        found = client.get("/api/pairs", params={"count": 12}).json()["pairs"]
        assert found[0]["caption"] == "<script>window.hacked=1</script>"
        assert client.get("/api/queues/worst/9").json()["caption"] == "\\ud800 alone"
        for one in found:  # whatever a name says, only the folder of the images is read
            assert client.get(f"/images/{one['image']}").status_code in (200, 404)
        surrogate = judge(client, found[0]["row"], take=found[9]["number"])
        assert surrogate.status_code == 422


def test_no_request_that_the_description_allows_makes_the_server_fail_and_answers_are_as_described(
    client: httpx.Client,
) -> None:
    schema = schemathesis.openapi.from_url(f"{client.base_url}openapi.json")
    kept = [not_a_server_error, response_schema_conformance, content_type_conformance]
    for operation in schema.get_all_operations():

        @settings(max_examples=12, suppress_health_check=list(HealthCheck), deadline=None, database=None)
        @given(case=operation.ok().as_strategy())
        def ask(case: Any) -> None:
            case.call_and_validate(checks=kept)

        ask()


def test_a_slow_client_blocks_nobody(client: httpx.Client) -> None:
    slow = []
    for _ in range(50):
        connection = socket.create_connection((client.base_url.host, client.base_url.port))
        connection.sendall(
            b"POST /api/undo HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{" % (client.base_url.port or 80)
        )
        slow.append(connection)
    started = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.get("/api/progress").status_code, range(40)))
    assert answers == [200] * 40
    assert time.monotonic() - started < 10
    for connection in slow:
        connection.close()


def test_a_client_that_never_ends_its_request_is_cut_off(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SECONDS", 0.2)
    address = client.base_url.host, client.base_url.port or 80
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: "):
        with socket.create_connection(address, timeout=30) as connection:
            connection.sendall(sent)
            assert connection.recv(100) == b""


def test_many_reviewers_at_once_lose_nothing(client: httpx.Client, audit: Audit) -> None:
    fresh(audit)
    rows = audit.findings.pairs.rows[:60].tolist()

    def review(who: int) -> list[int]:
        return [judge(client, row, "right", f"reviewer {who}").status_code for row in rows[who::4]]

    with ThreadPoolExecutor(4) as pool:
        assert all(code == 200 for codes in pool.map(review, range(4)) for code in codes)
    assert sorted(Verdicts.open(audit.run).current()) == sorted(rows)


def test_the_page_refuses_what_it_cannot_search_with_in_a_sentence(audit: Audit, tmp_path: Path) -> None:
    with served(audit, search=False) as (_, client):
        about = client.get("/api/about").json()
        assert not about["search"]
        assert about["why_not"]
        assert client.get("/api/search", params={"q": "a dog"}).status_code == 404
