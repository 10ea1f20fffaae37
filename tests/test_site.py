"""The documentation site builds without a warning, and loads nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is missing: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    pages = {page for page in pages if page.parts[0] != "snippets"}  # parts of other pages
    assert len(pages) > 30
    assert [page for page in pages if not (site / page).is_file()] == []
    assert (site / "search/search_index.json").stat().st_size > 10_000


def test_nothing_is_loaded_from_outside_the_site(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|source)[^>]+src=\"?(https?:)?//|<link[^>]+href=\"?(?:https?:)?//")
    for page in site.rglob("*.html"):
        tags = [tag.group() for tag in loads.finditer(page.read_text("utf-8")) if 'rel="canonical"' not in tag.group()]
        assert tags == [], page
    for style in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text("utf-8")) == [], style


CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="Chromium is missing: on Debian, apt-get install chromium chromium-driver; elsewhere put chromium and "
    "chromedriver on the PATH",
)
def test_on_a_phone_no_page_is_too_wide_and_no_picture_is_missing(site: Path) -> None:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    options.add_experimental_option("mobileEmulation", {"deviceMetrics": {"width": 390, "height": 844}})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    try:
        for page in site.rglob("*.html"):
            driver.get(page.as_uri())
            width = driver.execute_script("return document.documentElement.scrollWidth")
            missing = driver.execute_script(
                "return [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src)"
            )
            assert (width, missing) == (390, []), page.name
    finally:
        driver.quit()
