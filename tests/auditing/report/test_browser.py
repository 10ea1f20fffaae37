"""The report in a real browser: nothing from the data is run, and filter, order and scrolling do what they say."""

import base64
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_audits import HOSTILE, NAMES, hostile_audit, made_audit, made_estimate, made_reasons, suggestions_of
from PIL import Image

from crcl.auditing.copies import Duplicates
from crcl.auditing.report import page as report
from crcl.data.duplicates import find_copies
from crcl.data.pictures.files import Files

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="Chromium is missing: on Debian, apt-get install chromium chromium-driver; elsewhere put chromium and "
        "chromedriver on the PATH",
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1280,900",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    yield driver
    driver.quit()


def opened(browser: Any, page: Path) -> Any:
    browser.get_log("browser")
    browser.get(page.as_uri())
    return browser


def texts(browser: Any, selector: str) -> list[str]:
    found: list[str] = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)", selector
    )
    return found


def wait(browser: Any, status: str) -> None:
    WebDriverWait(browser, 10).until(lambda driver: driver.find_element(By.ID, "status").text == status)


def test_no_caption_and_no_name_is_run(browser: Any, tmp_path: Path) -> None:
    found = hostile_audit()
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)).save(tmp_path / "plain.jpg")
    page = report.write_report(
        tmp_path / "a 'report' & <more>",
        replace(found, suggestions=suggestions_of(found)),
        title=HOSTILE[2],
        estimate=made_estimate(),
        about=[(HOSTILE[0], HOSTILE[1])],
        pictures=Files(tmp_path),
        details=report.Details(reasons=made_reasons(found)),
    )
    opened(browser, page)
    wait(browser, "12 pairs")
    assert texts(browser, ".cards .caption")[:7] == HOSTILE[:7]
    assert browser.find_element(By.TAG_NAME, "h1").text == HOSTILE[2]
    assert "{{7*7}}.jpg" in texts(browser, ".cards .name")
    browser.find_element(By.ID, "find").send_keys("<script>")
    wait(browser, "4 of 12 pairs")  # three captions and a name
    browser.find_element(By.ID, "find").clear()
    browser.find_element(By.ID, "find").send_keys(Keys.SPACE)
    wait(browser, "12 pairs")
    assert f"replace by {HOSTILE[2]}" in texts(browser, ".cards .fix-text")
    assert f"The words “{HOSTILE[0]}” fit nothing in the picture." in texts(browser, ".cards .of-words")
    loaded = "return [...document.images].filter((image) => image.src && image.naturalWidth === 40).length"
    WebDriverWait(browser, 10).until(lambda driver: driver.execute_script(loaded) > 0)
    assert browser.execute_script("return typeof window.hacked") == "undefined"
    assert browser.execute_script("return document.querySelectorAll('.cards script, .cards [onerror]').length") == 0
    assert browser.get_log("browser") == []


def test_what_is_added_to_the_page_is_not_run_either(browser: Any, tmp_path: Path) -> None:
    """The policy holds even if something got in."""
    opened(browser, report.write_report(tmp_path / "report", hostile_audit(), title="audit"))
    browser.execute_script(
        "document.body.insertAdjacentHTML('beforeend', arguments[0]);"
        "const script = document.createElement('script'); script.textContent = 'window.hacked = 1';"
        "document.body.append(script)",
        HOSTILE[1],
    )
    assert browser.execute_script("return typeof window.hacked") == "undefined"
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))


def test_ten_thousand_suspects_are_filtered_sorted_and_shown_bit_by_bit(browser: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    found = made_audit(rng.permutation(10_000) / 200_000, images=500)
    page = report.write_report(tmp_path / "report", replace(found, suggestions=suggestions_of(found)), title="many")
    opened(browser, page)
    wait(browser, "10,000 pairs")
    assert texts(browser, ".cards .caption") == [found.pairs.captions[row] for row in found.rows[:48]]

    browser.execute_script("window.scrollTo(0, document.body.scrollHeight)")
    WebDriverWait(browser, 10).until(lambda driver: len(texts(driver, ".cards .caption")) > 48)
    shown = texts(browser, ".cards .caption")
    assert len(shown) < 500
    assert shown == [found.pairs.captions[row] for row in found.rows[: len(shown)]]

    browser.find_element(By.ID, "find").send_keys("CAPTION 77 .jpg")
    fitting = [row for row in found.rows if "77" in f"caption {row} {row % 500}.jpg"]
    wait(browser, f"{len(fitting)} of 10,000 pairs")
    assert texts(browser, ".cards .caption")[:48] == [f"caption {row}" for row in fitting[:48]]

    expected = {
        "most": fitting[::-1],
        "dissimilar": sorted(fitting, reverse=True),
        "similar": sorted(fitting),
        "row": sorted(fitting),
        "name": sorted(fitting, key=lambda row: (row % 500, row)),  # 2.jpg before 10.jpg
        "least": fitting,
    }
    for order, rows in expected.items():
        Select(browser.find_element(By.ID, "order")).select_by_value(order)
        assert texts(browser, ".cards .caption")[:48] == [f"caption {row}" for row in rows[:48]], order

    browser.find_element(By.ID, "find").clear()
    slider = browser.find_element(By.ID, "most")
    slider.send_keys(Keys.HOME, Keys.ARROW_RIGHT)  # by the keyboard
    browser.find_element(By.ID, "find").send_keys(Keys.SPACE)
    wait(browser, "2 of 10,000 pairs")
    assert browser.find_element(By.ID, "limit").text == "0.00000500"
    assert texts(browser, ".cards .correspondence") == ["0", "0.00000500"]
    slider.send_keys(Keys.END)
    browser.find_element(By.ID, "find").send_keys(Keys.SPACE)
    wait(browser, "10,000 pairs")
    assert browser.find_element(By.ID, "limit").text == "0.0500"
    browser.find_element(By.ID, "find").send_keys("nowhere to be found")
    wait(browser, "0 of 10,000 pairs")
    assert browser.find_element(By.ID, "none").is_displayed()
    assert browser.get_log("browser") == []


def test_a_reason_is_pressed_to_see_only_its_pairs_and_again_to_see_all(browser: Any, tmp_path: Path) -> None:
    found = made_audit(np.linspace(0, 0.2, 300), caption_rows=np.arange(300) + 1000)
    details = report.Details(reasons=made_reasons(found))
    opened(browser, report.write_report(tmp_path / "report", found, title="reasons", details=details))
    wait(browser, "200 pairs")
    flagged = len(found.suspects)
    assert texts(browser, ".by-reason button") == [
        f"no neighbour agrees {flagged // 3}",
        f"fits another image far better {flagged // 3}",
        f"copy of an image with another caption {flagged // 3}",
        f"none of these {flagged // 3}",
    ]
    assert texts(browser, ".card:first-child .reasons li") == [
        "no neighbour agrees",
        "fits the image of row 1001 far better",
    ]
    of_words = browser.find_elements(By.CSS_SELECTOR, ".cards .of-words")
    assert [part.text for part in of_words[:3]] == ["The words “caption 0” fit nothing in the picture.", "", ""]
    assert [part.is_displayed() for part in of_words[:3]] == [True, False, False]
    copy, none = browser.find_elements(By.CSS_SELECTOR, ".by-reason button")[2:]
    copy.click()
    wait(browser, f"{flagged // 3} of 200 pairs")
    assert texts(browser, ".cards .caption")[:2] == ["caption 1", "caption 4"]
    assert set(texts(browser, ".cards .fix-text")) == {f"replace by caption {row + 1}" for row in range(1, 3 * 48, 3)}
    assert (copy.get_attribute("aria-pressed"), none.get_attribute("aria-pressed")) == ("true", "false")
    browser.find_element(By.ID, "find").send_keys("caption 4")
    wait(browser, f"{sum('4' in str(row) for row in range(1, flagged, 3))} of 200 pairs")
    browser.find_element(By.ID, "find").clear()
    none.click()
    wait(browser, f"{flagged // 3} of 200 pairs")
    assert texts(browser, ".cards .caption")[:2] == ["caption 2", "caption 5"]
    assert set(texts(browser, ".cards .fix-text")) == {"drop"}
    none.click()
    wait(browser, "200 pairs")
    assert browser.get_log("browser") == []


def printed_pages(browser: Any) -> int:
    """How many pages of A4 the browser prints at once, without being given time to load anything."""
    paper = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True}
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", paper)["data"])
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


def test_twelve_cards_are_printed_with_their_pictures_on_three_pages(browser: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(40):
        noise = rng.integers(0, 255, (240, 320, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{number}.jpg")
    words = ["a man in a red shirt rides a small white horse along the beach"] * 272
    found = made_audit(np.linspace(0, 0.09, 272), images=40, captions=words)
    page = report.write_report(
        tmp_path / "report",
        replace(found, suggestions=suggestions_of(found)),
        title="audit",
        estimate=made_estimate(),
        pictures=Files(tmp_path),
        details=report.Details(reasons=made_reasons(found)),
    )
    cards = "[...document.querySelectorAll('.card')].slice(0, 12)"
    phone = {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)  # most of the cards are far out of sight
        opened(browser, page)
        assert printed_pages(browser) <= 3
        images = f"{cards}.flatMap((card) => [...card.querySelectorAll('img')])"
        loaded = f"{images}.filter((image) => image.complete && image.naturalWidth)"  # complete alone: or put off
        assert browser.execute_script(f"return {loaded}.length") == 36
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    try:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        assert browser.find_element(By.ID, "on-paper").text == "Printed: the first 12 of 272."
        high = browser.execute_script(f"return Math.max(...{cards}.map((card) => card.offsetHeight))")
        assert high < 273 / 25.4 * 96 / 2  # two rows fit a page
        shown = "return [...document.querySelectorAll('.card')].filter((card) => card.offsetHeight > 0).length"
        assert browser.execute_script(shown) == report.PRINTED
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    browser.find_element(By.ID, "find").send_keys("13.jpg")
    wait(browser, "7 of 272 pairs")
    printed = browser.find_element(By.ID, "on-paper").get_attribute("textContent")
    assert printed == "Printed: 7 that match the filter."


def test_the_page_fits_a_phone(browser: Any, tmp_path: Path) -> None:
    found = made_audit(np.linspace(0, 0.09, 60), image_ids=["very/long/" * 30 + f"{row}.jpg" for row in range(60)])
    page = report.write_report(tmp_path / "report", found, title="audit", estimate=made_estimate())
    try:
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": 375, "height": 800, "deviceScaleFactor": 2, "mobile": True}
        )
        opened(browser, page)
        wait(browser, "60 pairs")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 375
        lefts = "return [...document.querySelectorAll('.card')].map((card) => card.getBoundingClientRect().left)"
        assert len(set(browser.execute_script(lefts))) == 1  # one column
        assert browser.get_log("browser") == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_copies_are_listed_below_their_sentence_and_none_is_run(browser: Any, tmp_path: Path) -> None:
    captions = [caption for caption in HOSTILE if "\ud800" not in caption] * 2
    found = made_audit(np.linspace(0, 0.09, len(captions)), captions=captions, image_ids=(NAMES * 2)[: len(captions)])
    copies = Duplicates(found.pairs, find_copies(found.pairs))
    opened(browser, report.write_report(tmp_path / "page", found, title="x", details=report.Details(copies)))
    assert texts(browser, ".copies summary") == [
        "21 images are exact copies of other images.",
        "11 captions occur more than once, in 22 pairs.",
    ]
    example = browser.find_element(By.CSS_SELECTOR, ".copies details:last-of-type li")
    assert not example.is_displayed()
    browser.find_element(By.CSS_SELECTOR, ".copies details:last-of-type summary").click()
    assert example.is_displayed()
    assert example.text == "<script>window.hacked=1</script> – 2 pairs, 1 image"
    assert browser.execute_script("return window.hacked === undefined")
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    wide = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert browser.execute_script(wide)
