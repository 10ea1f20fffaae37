"""Draws the screenshots of docs/review.md: scenes, their audit, and the page of `crcl serve` in a headless Chromium.

    python docs/screens.py [FOLDER]    # needs chromium and chromedriver; FOLDER keeps the scenes and their audit

A reviewer who knows the answers, which the example writes beside the scenes, judges the first pairs of the sample.
"""

import argparse
import csv
import io
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import crcl
from crcl.auditing.result import Audit
from crcl.runs.verdicts import Verdicts

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
JUDGED = 120  # pairs of the sample
DESKTOP, PHONE = (1240, 760), (390, 800)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp())
    audit, right = prepare(folder)
    with crcl.serve(audit, port=0, wait=False) as page, httpx.Client(base_url=page.url, timeout=60) as client:
        wait_for(lambda: client.get("/api/about").status_code == 200)
        judge_sample(client, right)
        print(client.get("/api/progress").json())
        browser = open_browser()
        try:
            draw_desktop(browser, page.url)
            draw_phone(browser, page.url)
        finally:
            browser.quit()


def prepare(folder: Path) -> tuple[Audit, dict[int, bool]]:
    """The audit of 800 scenes, and whether each row is right."""
    scenes = folder / "scenes"
    if not scenes.is_dir():
        words = [sys.executable, str(ROOT / "examples" / "wrong_pairs.py"), str(scenes), "--images", "800"]
        subprocess.run(words, check=True)
    audit = crcl.audit(scenes / "pairs.csv", folder / "pairs-audit", images=scenes / "drawn" / "images")
    for path in Verdicts.open(audit.run).folder.glob("verdicts.sqlite*"):
        path.unlink()
    with (scenes / "answers.csv").open(encoding="utf-8") as file:
        return audit, {int(line["row"]): line["right"] == "True" for line in csv.DictReader(file)}


def judge_sample(client: httpx.Client, right: dict[int, bool]) -> None:
    """Verdicts on the first pairs of the sample and on three of the worst."""
    for queue, count in (("sample", JUDGED), ("worst", 3)):
        for place in range(count):
            row = client.get(f"/api/queues/{queue}/{place}").json()["row"]
            verdict = {"row": row, "verdict": "right" if right[row] else "wrong"}
            step = {"reviewer": "Ana", "queue": queue, "verdicts": [verdict]}
            client.post("/api/verdicts", json=step).raise_for_status()


def open_browser() -> Any:
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def draw_desktop(browser: Any, url: str) -> None:
    sized(browser, DESKTOP)
    browser.get(url)
    wait_for(lambda: browser.find_element(By.ID, "name").is_displayed())
    browser.find_element(By.ID, "name").send_keys("Ana", Keys.ENTER)
    shown(browser, "#pair img")
    save(browser, "worst")
    go(browser, url, f"#review/sample/{JUDGED}", "#pair img")
    save(browser, "sample")
    go(browser, url, "#grid", "#cells img")
    for box in browser.find_elements(By.CSS_SELECTOR, "#cells input")[3:6]:
        box.click()
    save(browser, "grid")
    go(browser, url, "#search/a purple star and a red square", "#found img")
    browser.find_element(By.CSS_SELECTOR, "#found a").click()
    shown(browser, "#near img")
    save(browser, "search")


def draw_phone(browser: Any, url: str) -> None:
    sized(browser, PHONE, mobile=True)
    go(browser, url, "#review/worst/3", "#pair img")
    save(browser, "phone")


def sized(browser: Any, size: tuple[int, int], *, mobile: bool = False) -> None:
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def go(browser: Any, url: str, where: str, selector: str) -> None:
    browser.get("about:blank")
    browser.get(f"{url}{where}")
    shown(browser, selector)


def shown(browser: Any, selector: str) -> None:
    """Wait until the first pictures are there."""
    loaded = "const all = [...document.querySelectorAll(arguments[0])].slice(0, 5);"
    loaded += "return all.length > 0 && all.every((one) => one.complete && one.naturalWidth > 0)"
    WebDriverWait(browser, 60).until(lambda driver: driver.execute_script(loaded, selector))
    time.sleep(1)  # until it is painted


def save(browser: Any, name: str, colours: int = 256) -> None:
    """A screenshot with few colours, which makes it small."""
    image = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    image.quantize(colours, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        IMAGES / f"review-{name}.png", optimize=True
    )


def wait_for(ready: Callable[[], bool]) -> None:
    for _ in range(600):
        try:
            if ready():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise TimeoutError


if __name__ == "__main__":
    main()
