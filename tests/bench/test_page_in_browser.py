"""The reports in a browser: nothing is clipped, text is legible, a bar is as long as its label says; and pictures."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.bench import reports
from tftrain.bench.tables import TABLES

WIDTHS = (800, 1200, 1600)
SCHEMES = {"light": (), "dark": ("--force-dark-mode",)}
SCRIPT = Path(__file__).with_name("layout.js")
SOME = ("levers", "large_other", "gpt_low_tp", "sweep_single_node")  # in dark: colours are the same in every table
CHARSET = '<meta charset="utf-8">'  # without it, Chromium guesses from what it has read so far
NUMBER = re.compile(r"[+-]?(\d+)\.?(\d*)(?:e([+-]\d+))?")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """Returns a function that starts Chromium on a file and returns its standard output."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        assert os.environ.get("CHROMIUM") != "1", "CHROMIUM=1, but there is no Chromium"
        pytest.skip("there is no Chromium: CHROMIUM=1 make setup installs it")
    profile = tmp_path_factory.mktemp("chromium")
    flags = [
        "--headless",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
        f"--user-data-dir={profile}",
    ]
    if os.getuid() == 0:
        flags.append("--no-sandbox")  # Chromium's sandbox does not start as root.

    def run(path: Path, *more: str) -> str:
        given = [program, *flags, *more, path.as_uri()]
        return subprocess.run(given, capture_output=True, text=True, timeout=120, check=True).stdout

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with the report of every table, and the records of each."""
    folder = tmp_path_factory.mktemp("reports")
    return folder, {name: reports.write(name, folder) for name in TABLES}


@pytest.fixture(scope="module", params=SCHEMES)
def layouts(request, folder, chromium):
    """Returns the layout of every report at every width, in one colour scheme."""
    pages, _ = folder
    frames = "".join(
        f'<iframe title="{name}" width="{width}" height="900" srcdoc="{content}"></iframe>'
        for name in (TABLES if request.param == "light" else SOME)
        for content in [html.escape((pages / f"{name}.html").read_text())]
        for width in WIDTHS
    )
    harness = pages / f"{request.param}.html"
    style = "<style>:root { color-scheme: light dark } iframe { border: 0 }</style>"
    harness.write_text(f"<!doctype html>{CHARSET}{style}<body>{frames}<script>{SCRIPT.read_text()}</script></body>")
    out = chromium(harness, *SCHEMES[request.param], "--virtual-time-budget=10000", "--dump-dom")
    found = json.loads(html.unescape(re.search(r'<pre id="result">(.*)</pre>', out, re.DOTALL)[1]))
    assert found["dark"] == (request.param == "dark")
    assert len(found["found"]) == frames.count("<iframe")
    return found["found"]


def test_nothing_is_clipped_at_any_width(layouts):
    for each in layouts:
        where = f"{each['name']} at {each['width']}"
        assert each["elements"] > 20, where
        assert each["scrolls"] <= each["width"] in WIDTHS, where
        assert each["clipped"] == [], where


def test_text_has_the_contrast_that_accessibility_asks_for(layouts):
    assert {each["name"]: each["faint"] for each in layouts if each["faint"]} == {}


def test_every_bar_is_as_long_as_the_label_at_its_end_says(layouts, folder):
    records = folder[1]
    for each in layouts:
        where = f"{each['name']} at {each['width']}"
        assert each["panels"] or len(records[each["name"]]) == 1, where
        for lines in each["panels"]:
            bars = [line for line in lines if "from" in line]
            assert len(bars) >= min(3, len(lines) - 1), where
            assert len(lines) >= len(records[each["name"]]), where
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


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_picture_shows_the_report(chromium, folder, scheme):
    pages, _ = folder
    picture = pages / f"{scheme}.png"
    chromium(pages / "large_fused.html", *SCHEMES[scheme], "--window-size=1200,1000", f"--screenshot={picture}")
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    assert pixels.shape == (1000, 1200, 3)
    paper = pixels[0, 0]
    assert (paper.mean() < 60) == (scheme == "dark")
    drawn = np.abs(pixels - paper).sum(axis=2) > 60
    # Text and bars: more than one line of text would have, and far from a filled page.
    assert 0.02 < drawn.mean() < 0.5
    for part in np.array_split(drawn, 4):
        assert part.any()
    # The bars of what was measured are orange in both schemes.
    orange = (pixels[..., 0] > 180) & (abs(pixels[..., 1] - 128) < 30) & (pixels[..., 2] < 90)
    assert orange.sum() > 1000
