"""The page in a real browser: review by keyboard alone, undo, bulk, search, and nothing that was saved is lost."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from reviewed import browsing, fresh, hostile, needs_chromium, plant, served, start_command
from tiny import finish

from crcl.auditing.result import Audit
from crcl.auditing.review.drawing import draw
from crcl.runs.verdicts import Verdict, Verdicts

pytest.importorskip("selenium", reason="selenium is not installed")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as driver:
        yield driver


@pytest.fixture(scope="module")
def url(audit: Audit) -> Iterator[str]:
    with served(audit) as (page, _):
        yield page.url


@pytest.fixture(autouse=True)
def without_verdicts(audit: Audit) -> None:
    fresh(audit)


def until(browser: Any, script: str, *given: Any) -> Any:
    return WebDriverWait(browser, 30).until(lambda driver: driver.execute_script(f"return {script}", *given))


def text(browser: Any, name: str) -> str:
    return str(browser.find_element(By.ID, name).get_attribute("textContent"))


def enter(browser: Any, url: str, where: str = "", *, name: str = "Ana") -> None:
    """Open the page anew as a reviewer."""
    browser.get_log("browser")
    browser.get("about:blank")
    browser.get(f"{url}{where}")
    until(browser, "!document.getElementById('ask').hidden || document.body.dataset.here !== undefined")
    if browser.find_element(By.ID, "ask").is_displayed():
        browser.find_element(By.ID, "name").send_keys(name, Keys.ENTER)
    until(browser, "document.body.dataset.here !== undefined")


def press(browser: Any, *keys: str) -> None:
    browser.switch_to.active_element.send_keys(*keys)


def at_place(browser: Any, place: int, queue: str = "worst") -> None:
    """Wait until the page shows a place of a queue."""
    until(
        browser,
        "location.hash === arguments[0] && document.getElementById('pair').ariaBusy === 'false' && "
        "document.getElementById('origin').textContent.includes(arguments[1])",
        f"#review/{queue}/{place}",
        f" · {place + 1} of ",
    )


def saved(browser: Any, what: str) -> None:
    until(browser, "document.getElementById('status').textContent === arguments[0]", what)


def worst(audit: Audit, place: int) -> dict[str, Any]:
    found: dict[str, Any] = audit.table.slice(place, 1).to_pylist()[0]
    return found


def current(audit: Audit) -> dict[int, Verdict]:
    return Verdicts.open(audit.run).current()


def test_everything_is_reviewed_by_keyboard_alone_and_undone_step_by_step_after_a_reload(
    browser: Any, url: str, audit: Audit
) -> None:
    enter(browser, url)
    keys = ["r", "w", "u", "1", "4"]
    for place, key in enumerate(keys):
        at_place(browser, place)
        assert text(browser, "caption") == worst(audit, place)["caption"]
        press(browser, key)  # a verdict moves on by itself
    at_place(browser, 5)
    press(browser, "e")
    press(browser, Keys.CONTROL + "a" + Keys.NULL, "two red things", Keys.ENTER)
    saved(browser, "saved: wrong, new caption")
    at_place(browser, 6)
    said = [current(audit)[worst(audit, place)["row"]] for place in range(6)]
    assert [one.verdict for one in said] == ["right", "wrong", "unsure", "wrong", "wrong", "wrong"]
    assert said[3].caption == worst(audit, 3)["caption_1"]
    assert said[4].image == worst(audit, 4)["image_1"]
    assert said[5].caption == "two red things"
    assert browser.find_element(By.CSS_SELECTOR, "#queue-worst .count").text.startswith("6 of ")
    browser.refresh()
    at_place(browser, 6)
    for place in range(5, -1, -1):
        press(browser, "z")
        at_place(browser, place)
        until(browser, "document.getElementById('verdict').hidden")
    assert current(audit) == {}
    press(browser, "z")
    saved(browser, "nothing to undo")
    press(browser, "j")
    at_place(browser, 1)
    press(browser, "k")
    at_place(browser, 0)
    assert browser.get_log("browser") == []


def test_every_action_of_the_review_has_its_key_printed_on_its_button(browser: Any, url: str) -> None:
    enter(browser, url, "#review/worst/0")
    at_place(browser, 0)
    shown = "[...document.querySelectorAll('#pair button kbd')].filter((key) => key.offsetHeight)"
    assert sorted(browser.execute_script(f"return {shown}.map((key) => key.textContent)")) == sorted("RWUEZKJ123456")


def test_keys_that_come_faster_than_answers_judge_no_pair_twice(browser: Any, url: str, audit: Audit) -> None:
    enter(browser, url, "#review/worst/0")
    at_place(browser, 0)
    browser.execute_script(
        "const key = {key: 'w', bubbles: true};"
        "for (let n = 0; n < 20; n++) document.body.dispatchEvent(new KeyboardEvent('keydown', key))"
    )
    at_place(browser, 1)
    assert Verdicts.open(audit.run).history()["row"].to_pylist() == [worst(audit, 0)["row"]]


def test_a_filtered_set_is_judged_at_once_and_undone_as_one_step(browser: Any, url: str, audit: Audit) -> None:
    enter(browser, url, "#grid")
    Select(browser.find_element(By.ID, "filter-queue")).select_by_value("all")
    browser.find_element(By.ID, "filter-text").send_keys("star")
    wanted = [
        row for row, caption in zip(audit.table["row"], audit.table["caption"], strict=True) if "star" in str(caption)
    ]
    until(browser, "document.getElementById('chosen').textContent === arguments[0]", f"0 of {len(wanted)} selected:")
    browser.find_element(By.ID, "filter-text").send_keys(Keys.TAB)
    press(browser, "w")  # nothing is selected yet
    until(browser, "document.getElementById('status').textContent.startsWith('select pairs first')")
    assert current(audit) == {}
    press(browser, "a", "w")
    saved(browser, f"saved: {len(wanted)} pairs wrong")
    assert sorted(current(audit)) == sorted(row.as_py() for row in wanted)
    until(browser, "document.querySelectorAll('#cells .said').length > 0")
    press(browser, "z")
    saved(browser, f"undone: {len(wanted)} verdicts")
    assert current(audit) == {}
    until(browser, "document.querySelectorAll('#cells .said').length === 0")
    browser.find_elements(By.CSS_SELECTOR, "#cells input")[1].click()
    press(browser, "r")  # a box that was clicked is no field to type into
    saved(browser, "saved: right")
    assert list(current(audit)) == [wanted[1].as_py()]
    assert browser.get_log("browser") == []


def test_the_random_sample_hides_what_the_audit_thinks_and_measures_it(browser: Any, url: str, audit: Audit) -> None:
    first = int(draw(audit.correspondence < audit.threshold).flagged.argmax())
    enter(browser, url, "#review/worst/0")
    at_place(browser, 0)
    browser.find_element(By.ID, "queue-sample").click()
    for place in range(3):
        at_place(browser, place, "sample")
        assert browser.find_element(By.ID, "blind").is_displayed()
        assert not browser.find_elements(By.CSS_SELECTOR, "#scores dd, #reasons li, .take, .relink")
        press(browser, "w")
    at_place(browser, 3, "sample")
    enter(browser, url, f"#review/sample/{first}")
    at_place(browser, first, "sample")
    press(browser, "w")
    at_place(browser, first + 1, "sample")
    until(browser, "/100 % \\(\\d+ % to 100 %\\)/.test(document.getElementById('precision').cells[1].textContent)")
    assert browser.find_element(By.CSS_SELECTOR, "#recall td:last-child").text.endswith("%)")  # the decoys' estimate


def test_search_finds_a_planted_scene_and_leads_to_what_is_near_it(browser: Any, url: str, audit: Audit) -> None:
    sentence, image = plant(audit)
    enter(browser, url, "#review/worst/0")
    at_place(browser, 0)
    press(browser, "/")
    until(browser, "document.activeElement.id === 'query'")
    press(browser, sentence, Keys.ENTER)
    until(browser, "document.querySelectorAll('#found img').length === 48")
    found = browser.find_elements(By.CSS_SELECTOR, "#found a")
    place = [one.get_attribute("href").rpartition("/")[2] for one in found].index(str(image))
    assert place < 10
    until(browser, "document.querySelectorAll('#found img')[arguments[0]].naturalWidth > 0", place)
    found[place].click()
    until(browser, "document.querySelectorAll('#near img').length === 12")
    name = str(audit.findings.pairs.image_ids[image])
    assert text(browser, "found-name") == name
    assert sentence in [one.text for one in browser.find_elements(By.CSS_SELECTOR, "#own-captions li")]
    assert len(browser.find_elements(By.CSS_SELECTOR, "#matching li")) == 12
    browser.find_element(By.CSS_SELECTOR, "#near a").click()
    until(browser, "document.getElementById('found-name').textContent !== arguments[0]", name)
    assert browser.get_log("browser") == []


def test_what_was_shown_as_saved_survives_kill_9_a_restart_and_a_reload(browser: Any, audit: Audit) -> None:
    words = ("--threshold", repr(audit.threshold), "--no-search")
    process, url = start_command(audit.run.path.parent, *words)
    try:
        enter(browser, url, "#review/worst/0", name="Kim")
        at_place(browser, 0)
        press(browser, "w")
        until(browser, "document.getElementById('status').textContent.startsWith('saved')")
        os.kill(process.pid, signal.SIGKILL)
        finish(process)
        assert {row: one.verdict for row, one in current(audit).items()} == {worst(audit, 0)["row"]: "wrong"}
        port = url.rpartition(":")[2].strip("/")
        process, again = start_command(audit.run.path.parent, *words, "--port", port)
        assert again == url
        enter(browser, url)
        at_place(browser, 1)
        until(browser, "document.querySelector('#queue-worst .count').textContent.startsWith('1 of ')")
        press(browser, "z")
        at_place(browser, 0)
        assert current(audit) == {}
    finally:
        process.send_signal(signal.SIGINT)
        answer = finish(process)
    assert answer.code == 0
    assert "all verdicts are saved in" in answer.out
    press(browser, "r")  # nobody is there to save it, and the page says so
    saved(browser, "not saved: the server does not answer")
    assert current(audit) == {}


def test_two_browsers_at_once_lose_nothing_and_see_where_they_differ(browser: Any, url: str, audit: Audit) -> None:
    enter(browser, url, "#review/worst/0")
    at_place(browser, 0)
    with browsing() as other:
        enter(other, url, "#review/worst/0", name="Ben")
        at_place(other, 0)
        press(other, "r")
        at_place(other, 1)
    press(browser, "w")  # the same pair, on the page as it was opened before
    saved(browser, "saved: wrong")
    at_place(browser, 1)
    press(browser, "w")
    at_place(browser, 2)
    until(browser, "document.getElementById('differ-count').textContent === '1'")
    browser.find_element(By.ID, "to-differ").click()
    until(browser, "document.querySelectorAll('.differs').length === 1")
    assert [one.text for one in browser.find_elements(By.CSS_SELECTOR, ".differs li")] == ["Ben: right", "Ana: wrong"]
    assert len(Verdicts.open(audit.run).history()) == 3
    browser.find_element(By.CSS_SELECTOR, ".differs a").click()
    until(browser, "document.querySelectorAll('#said li').length === 2")
    press(browser, "r")
    until(browser, "document.querySelectorAll('.differs').length === 0 && location.hash === '#differ'")


def test_hostile_captions_names_and_reviewers_are_text_and_do_nothing(browser: Any, audit: Audit) -> None:
    bad = "<img src=x onerror=window.hacked=1>"
    with served(hostile(audit)) as (page, client):
        enter(browser, page.url, "#review/worst/0")
        at_place(browser, 0)
        assert text(browser, "caption") == "<script>window.hacked=1</script>"
        row = client.get("/api/queues/worst/0").json()["row"]
        for who, caption in ((bad, bad), ("javascript:alert(1)", "'><svg onload=window.hacked=1>")):
            step = {"row": row, "verdict": "wrong", "caption": caption}
            client.post("/api/verdicts", json={"reviewer": who, "queue": "worst", "verdicts": [step]})
        for where in ("#grid", "#differ", "#search/%3Cscript%3E", "#search//0", "#review/worst/3", "#review/pair/0"):
            enter(browser, page.url, where)
            until(browser, "document.querySelectorAll('main img').length > 0")
        enter(browser, page.url, "#differ")
        until(browser, "document.querySelectorAll('.differs li').length === 2")
        assert bad in text(browser, "differing")
        assert browser.execute_script("return window.hacked === undefined")
        assert (
            browser.execute_script("return document.querySelectorAll('main script, main svg, [onerror]').length") == 0
        )
        browser.execute_script("document.body.insertAdjacentHTML('beforeend', arguments[0])", bad)
        browser.execute_script(
            "const s = document.createElement('script'); s.text = 'window.hacked=1'; document.body.append(s)"
        )
        assert browser.execute_script("return window.hacked === undefined")  # the policy holds even if something got in


def test_the_page_fits_a_phone_and_its_buttons_are_in_reach(browser: Any, url: str, audit: Audit) -> None:
    phone = {"width": 375, "height": 700, "deviceScaleFactor": 2, "mobile": True}
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
        for where in (
            "#grid",
            "#differ",
            f"#search/{plant(audit)[0]}/0",
            "docs",
            "#review/sample/0",
            "#review/worst/0",
        ):
            enter(browser, url, where) if where != "docs" else browser.get(f"{url}docs")
            until(browser, "document.querySelectorAll('main li, main .operation').length > 0")
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 375, where
            cut = "return document.querySelector('nav').scrollWidth - document.querySelector('nav').clientWidth"
            assert browser.execute_script(cut) <= 0, where
        at_place(browser, 0)
        right = "document.querySelector('.acts .right').getBoundingClientRect().bottom <= innerHeight"
        assert browser.execute_script(f"return {right}")
        browser.find_element(By.CSS_SELECTOR, ".acts .right").click()
        at_place(browser, 1)
        assert len(current(audit)) == 1
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
