"""Pages in Chromium: their layout at four widths, in light and dark, and what must hold for every one of them."""

import html
import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tools import page_picture

WIDTHS = (400, 800, 1200, 1600)
SCHEMES = {"light": (), "dark": ("--force-dark-mode",)}
SCRIPT = Path(__file__).with_name("layout.js")
CHARSET = '<meta charset="utf-8">'  # without it, Chromium guesses from what it has read so far
NUMBER = re.compile(r"[+-]?(\d+)\.?(\d*)(?:e([+-]\d+))?")

Chromium = Callable[..., str]


def chromium(profile: Path) -> Chromium:
    """Returns a function that starts Chromium on a file and returns its standard output; skips a test without one."""
    command = page_picture.chromium(profile)
    if not command:
        assert os.environ.get("CHROMIUM") != "1", "CHROMIUM=1, but there is no Chromium"
        pytest.skip("there is no Chromium: CHROMIUM=1 make setup installs it")

    def run(path: Path, *more: str) -> str:
        given = [*command, *more, path.as_uri()]
        return subprocess.run(given, capture_output=True, text=True, timeout=120, check=True).stdout

    return run


def layouts(run: Chromium, pages: Mapping[str, Path], scheme: str, harness: Path) -> list[dict]:
    """Returns the layout of every page at every width, in one colour scheme; `harness` is a file to write."""
    frames = "".join(
        f'<iframe title="{name}" width="{width}" height="900" srcdoc="{content}"></iframe>'
        for name, path in pages.items()
        for content in [html.escape(path.read_text())]
        for width in WIDTHS
    )
    style = "<style>:root { color-scheme: light dark } iframe { border: 0 }</style>"
    harness.write_text(f"<!doctype html>{CHARSET}{style}<body>{frames}<script>{SCRIPT.read_text()}</script></body>")
    out = run(harness, *SCHEMES[scheme], "--virtual-time-budget=10000", "--dump-dom")
    found = json.loads(html.unescape(re.search(r'<pre id="result">(.*)</pre>', out, re.DOTALL)[1]))
    assert found["dark"] == (scheme == "dark")
    assert len(found["found"]) == frames.count("<iframe")
    return found["found"]


def assert_legible(found: list[dict]) -> None:
    """Nothing is clipped at any width, and text has the contrast that accessibility asks for."""
    for each in found:
        where = f"{each['name']} at {each['width']}"
        assert each["elements"] > 20, where
        assert each["scrolls"] <= each["width"] in WIDTHS, where
        assert each["clipped"] == [], (where, each["clipped"])
    assert {each["name"]: each["faint"] for each in found if each["faint"]} == {}


def assert_bars(lines: list[dict], where: str) -> None:
    """Every bar of a panel is as long as the label at its end says."""
    bars = [line for line in lines if "from" in line]
    assert len(bars) >= min(3, len(lines) - 1), where
    values = [bar["value"] for bar in bars]
    pixels = max(bar["to"] - bar["from"] for bar in bars) / max(map(abs, values))
    for value, bar in zip(values, bars, strict=True):
        text = NUMBER.match(bar["text"].replace("\N{MINUS SIGN}", "-"))
        assert text, (where, bar)
        last_digit = 10.0 ** (int(text[3] or 0) - len(text[2]))
        assert float(text[0]) == pytest.approx(value, abs=0.51 * last_digit), (where, bar)
        # A bar has at least one pixel.
        length = bar["to"] - bar["from"]
        assert length == pytest.approx(max(1, pixels * abs(value)), abs=0.6), (where, bar)
        if value >= 0:
            assert abs(bar["from"]) < 1.5, (where, bar)
            assert abs(bar["labelFrom"] - max(bar["to"], 0)) < 2, (where, bar)
        else:
            assert abs(bar["to"]) < 1.5, (where, bar)
            assert abs(bar["labelTo"] - bar["from"]) < 2, (where, bar)
