"""JSON is parsed without a second reading of it, and an error names the field and shows its value."""

import msgspec
import pytest

from tftrain.files import strict_json


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    sizes: list[int] = []


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    count: int
    inner: Inner | None = None


@pytest.mark.parametrize(
    "text", ["", "nul", "NaN", "[-Infinity]", '{"a": 1, "a": 1}', "[" * 10**5, '{"a":' * 10**5, "9" * 5000, b"\xff"]
)
def test_what_is_not_strict_json_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        strict_json.parse(text)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], r"it is \[\]: Expected `object`, got `array`"),
        ({}, "Object missing required field `count`"),
        ({"count": True}, "count is True: Expected `int`, got `bool`"),
        ({"count": 1.0}, "count is 1.0: Expected `int`, got `float`"),
        ({"count": 1, "other": 1}, "Object contains unknown field `other`"),
        ({"count": 1, "inner": {"sizes": [1, "x"]}}, r"inner\.sizes\[1\] is 'x': Expected `int`, got `str`"),
        ({"count": 1, "inner": {"x": 1}}, "inner: Object contains unknown field `x`"),
        ({"count": "x" * 10**6}, r"count is 'xxx+\.\.\.x+': Expected `int`"),
    ],
)
def test_an_error_names_the_field_and_shows_its_value(value, message):
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        strict_json.convert(value, Outer)
    assert len(str(caught.value)) < 500
    with pytest.raises(ValueError, match=r"^entries\.a"):
        strict_json.convert_each({"a": value}, Outer, "entries")


@pytest.mark.parametrize("value", [{"\ud800": 1}, {"count": "\ud800"}, {"count\n`": 1}])
def test_a_name_that_no_terminal_shows_is_refused_in_one_line(value):
    with pytest.raises(ValueError, match=r".") as caught:
        strict_json.convert({"count": 1} | value, Outer, "x")
    assert str(caught.value).isprintable()
