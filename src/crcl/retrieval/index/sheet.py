"""A sheet of thumbnails as one HTML page without scripts or outside resources; keys and captions are text in it."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from crcl.data.images import small_jpeg
from crcl.data.pictures.base import Pictures, UnusableError

SIDE = 240
"""Longest side of a thumbnail in pixels."""
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="generator" content="crcl search">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ query }}</title>
<style>
body { font: 15px/1.4 system-ui, sans-serif; margin: 1.5rem; color: #222; background: #fff }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem }
figure { margin: 0; padding: .6rem; border: 1px solid #ccc; border-radius: .4rem; overflow-wrap: anywhere }
img, .none { display: block; width: 100%; height: 12rem; object-fit: contain; background: #f2f2f2 }
.none { text-align: center; line-height: 12rem; color: #666 }
ul { margin: .4rem 0 0; padding-left: 1.1rem }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 } img, .none { background: #2a2a2a } }
</style>
<h1><bdi>{{ query }}</bdi></h1>
<main>
{%- for hit in hits %}
<figure>
{% if hit.image %}<img alt="" src="data:image/jpeg;base64,{{ hit.image }}">
{%- else %}<div class="none">{{ hit.reason }}</div>{% endif %}
<figcaption><b>{{ hit.rank }}.</b> {{ "%.3f"|format(hit.score) }} <bdi>{{ hit.key }}</bdi>
<ul>{% for caption in hit.captions %}<li><bdi>{{ caption }}</bdi>{% endfor %}</ul></figcaption>
</figure>
{%- endfor %}
</main>
</html>
"""


_MARK = b'<meta name="generator" content="crcl search">'


def sheet_html(query: str, hits: Sequence[tuple[int, str, float, Sequence[str]]], pictures: Pictures | None) -> str:
    """The page: what was searched for, and each hit with its thumbnail, or the reason why it has none.

    Args:
        query: The title.
        hits: Rank, key, score and captions of each.
        pictures: Where the images lie; None if that is unknown.
    """
    shown: list[dict[str, Any]] = []
    for rank, key, score, captions in hits:
        image, reason = _thumbnail(pictures, key)
        shown.append({"rank": rank, "key": key, "score": score, "captions": captions, "image": image, "reason": reason})
    return jinja2.Environment(autoescape=True).from_string(_PAGE).render(query=query, hits=shown)


def is_sheet(path: Path) -> bool:
    """Whether a file is a sheet, which another one may replace."""
    with path.open("rb") as file:
        return _MARK in file.read(500)


def _thumbnail(pictures: Pictures | None, key: str) -> tuple[str, str]:
    """A thumbnail in base64, or the reason why there is none."""
    if pictures is None:
        return "", "no image files"
    try:
        return base64.b64encode(small_jpeg(pictures.read(key), side=SIDE)).decode(), ""
    except UnusableError as reason:
        return "", str(reason).partition(" (")[0]
