"""Bars in HTML: what is called better, worse or noise, and the numbers at the ends of the bars."""

import re

from hypothesis import example, given
from hypothesis import strategies as some

from tftrain.page.bars import BarSeries, Panel, chart
from tftrain.page.document import document

SPEED = Panel("speed", (BarSeries("change", spread="spread"),), "+.1f", " %", better=1)
MEMORY = Panel("memory", (BarSeries("change", spread="spread"),), "+.1f", " %", better=-1)
MINUS = "\N{MINUS SIGN}"
UNITS = some.floats(-300, 300, allow_subnormal=False)  # a hundredth of the least subnormal number is 0


def draw(panel, *records, base=""):
    panels = chart([panel], [{"row": str(n), **record} for n, record in enumerate(records)], name_of, base)
    return document("title", "about", [("bars", panels)]).partition("<body>")[2]


def name_of(record):
    return record["row"], ""


@given(UNITS, some.floats(0, 300))
@example(4.14, 4.06)  # both are printed as 4.1
@example(0.0, 0.0)
def test_a_change_within_the_spread_of_the_base_is_neither_better_nor_worse(change, spread):
    shown, limit = abs(round(change, 1)), round(spread, 1)
    for panel, sign in ((SPEED, 1), (MEMORY, -1)):
        found = panel.verdict(panel.series[0], {"change": change, "spread": spread})
        html = draw(panel, {"change": change, "spread": spread})
        if shown <= limit:
            assert found == "noise"
            assert not re.search(r'class="[^"]*(better|worse)', html)
        else:
            assert found == ("better" if sign * change > 0 else "worse")
            assert f'class="line measured {found}"' in html


def test_without_a_known_spread_nothing_is_called_better():
    assert SPEED.verdict(SPEED.series[0], {"change": 80.0}) == ""
    assert "band" not in draw(SPEED, {"change": 80.0})


def test_a_figure_that_is_no_change_is_not_judged():
    panel = Panel("time", (BarSeries("seconds", spread=0.0),), ".3f", " s")
    assert panel.verdict(panel.series[0], {"seconds": 2.5}) == ""
    assert ">2.500 s<" in draw(panel, {"seconds": 2.5})


@given(some.lists(UNITS, min_size=1, max_size=8))
@example([-0.0])
def test_bars_are_as_long_as_their_labels_say_and_start_at_zero(values):
    html = draw(SPEED, *({"change": value} for value in values))
    bars = re.findall(r'class="bar" style="left:([\d.]+)%;width:([\d.]+)%"', html)
    labels = re.findall(r'data-value="[^"]+">([^<]+) %<', html)
    low, high = min(0, *values, 0), max(0, *values, 0)
    span, zero = (high - low or 1) / 100, -low / ((high - low or 1) / 100)
    for value, (left, width), label in zip(values, bars, labels, strict=True):
        assert abs(float(label.replace(MINUS, "-")) - value) <= 0.0501
        assert abs(float(width) * span - abs(value)) <= 0.002 * span
        edge = float(left) + (float(width) if value < 0 else 0)
        assert abs(edge - zero) <= 0.003


def test_numbers_have_a_minus_sign_and_zero_has_none():
    assert [SPEED.text(value) for value in (-3.06, 4.0, -0.04)] == [f"{MINUS}3.1 %", "+4.0 %", "0.0 %"]


def test_a_missing_change_is_a_dash_and_a_word_is_shown():
    panel = Panel("speed", (BarSeries("change", figure="gb"),), "+.1f")
    html = draw(panel, {"change": 1.0, "gb": 2.0}, {"change": None}, {"change": None, "gb": "<OOM>"})
    assert ">\N{EN DASH}<" in html
    assert ">&lt;OOM&gt;<" in html
    assert html.count('class="bar"') == 1


def test_a_series_that_no_record_has_is_left_out_and_a_chart_without_series_is_empty():
    both = Panel("speed", (BarSeries("change", "here"), BarSeries("other", "planned")), "+.1f")
    assert "legend" in draw(both, {"change": 1.0, "other": 2.0})
    assert "planned" not in draw(both, {"change": 1.0})
    assert chart([both], [{"third": 1.0}], lambda record: ("a", "")) == []


def test_the_base_is_named_and_has_no_bar():
    html = draw(SPEED, {"change": 0.0, "spread": 1.0}, {"change": 2.0, "spread": 1.0}, base="0")
    assert html.count(">base<") == 1
    assert html.count('class="bar"') == 1
