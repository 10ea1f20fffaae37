"""A drawn audit to review, its server in this process or as the real command, and browsers to open it with."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from drawn import SETTINGS, drawn, write_table
from made_audits import HOSTILE, NAMES
from tiny import start

import crcl
from crcl.auditing.result import Audit

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="Chromium is missing: on Debian, apt-get install chromium chromium-driver; elsewhere put chromium and "
    "chromedriver on the PATH",
)


def make_audit(folder: Path) -> Audit:
    """An audit of drawn scenes, about a fifth of which are mismatched; some pairs are flagged."""
    table = write_table(drawn(160, 2), folder)
    return crcl.audit(table, folder / "pairs-audit", threshold=None, keep=0.8, settings=SETTINGS)


def hostile(audit: Audit) -> Audit:
    """The same audit with hostile captions and names."""
    pairs = audit.findings.pairs
    captions, names = list(pairs.captions), list(pairs.image_ids)
    worst = audit.findings.rows[: len(HOSTILE)].tolist()
    for row, text, name in zip(worst, HOSTILE, NAMES, strict=True):
        captions[row] = text
        names[pairs.image_index[row]] = name
    found = replace(audit.findings, pairs=replace(pairs, captions=captions, image_ids=names))
    return Audit(found, audit._correspondences, audit._origin, audit.duplicates)


def fresh(audit: Audit) -> None:
    """Forget all verdicts."""
    for path in audit.run.path.glob("verdicts.sqlite*"):
        path.unlink()


@contextmanager
def served(audit: Audit, **options: Any) -> Iterator[tuple[Any, httpx.Client]]:
    """The server in a thread of this process, and a client of it."""
    with (
        crcl.serve(audit, port=0, wait=False, **options) as page,
        httpx.Client(base_url=page.url, timeout=30) as client,
    ):
        wait_for(page.url)
        yield page, client


def wait_for(url: str, seconds: float = 60) -> None:
    """Wait until a server answers."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            httpx.get(url, timeout=5)
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise TimeoutError(url)


def start_command(folder: Path, *words: str) -> tuple["subprocess.Popen[str]", str]:
    """`crcl serve` as a process of its own, and the address that it printed."""
    process = start("serve", str(folder), "--port", "0", *words)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("serving http://127.0.0.1:"), (line, process.stderr and process.stderr.read())
    url = line.split()[1]
    wait_for(url)
    return process, url


@contextmanager
def browsing(*, phone: bool = False) -> Iterator[Any]:
    """A headless Chromium with a profile of its own."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    words = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars")
    for word in (*words, "--window-size=1280,900"):
        options.add_argument(word)
    if phone:
        options.add_experimental_option("mobileEmulation", {"deviceMetrics": {"width": 390, "height": 844}})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def plant(audit: Audit) -> tuple[str, int]:
    """A caption that the audit believes most, and the image that it names."""
    pairs = audit.findings.pairs
    best = int(np.argmax(audit.correspondence))
    return pairs.captions[best], int(pairs.image_index[best])
