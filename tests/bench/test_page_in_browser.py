"""The reports in a browser: nothing is clipped, text is legible, a bar is as long as its label says; and pictures."""

import numpy as np
import pytest
from PIL import Image

from tests.bench import reports
from tests.page import browser
from tests.page.browser import SCHEMES
from tests.security.test_pages import check
from tftrain.bench.tables import TABLES

SOME = ("levers", "large_other", "gpt_low_tp", "sweep_single_node")  # in dark: colours are the same in every table


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    return browser.chromium(tmp_path_factory.mktemp("chromium"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with the report of every table, and the records of each."""
    folder = tmp_path_factory.mktemp("reports")
    return folder, {name: reports.write(name, folder) for name in TABLES}


@pytest.mark.parametrize("name", TABLES)
def test_every_report_has_the_policy(folder, name):
    check(folder[0] / f"{name}.html")


@pytest.fixture(scope="module", params=SCHEMES)
def layouts(request, folder, chromium):
    """Returns the layout of every report at every width, in one colour scheme."""
    pages = {name: folder[0] / f"{name}.html" for name in (TABLES if request.param == "light" else SOME)}
    return browser.layouts(chromium, pages, request.param, folder[0] / f"{request.param}.html")


def test_nothing_is_clipped_and_text_has_contrast(layouts):
    browser.assert_legible(layouts)


def test_every_bar_is_as_long_as_the_label_at_its_end_says(layouts, folder):
    records = folder[1]
    for each in layouts:
        where = f"{each['name']} at {each['width']}"
        assert each["panels"] or len(records[each["name"]]) == 1, where
        for lines in each["panels"]:
            assert len(lines) >= len(records[each["name"]]), where
            browser.assert_bars(lines, where)


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
