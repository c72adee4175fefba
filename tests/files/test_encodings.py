"""Encodings that look like UTF-8."""

import base64
import random

import pytest

from tftrain.files import encodings

TEXT = "今日は天気が良いので散歩\n" * 20


@pytest.mark.parametrize(
    ("text", "codec", "expected"),
    [
        (TEXT, "iso2022_jp", "ISO-2022-JP"),
        ("한국어 문장\n", "iso2022_kr", "ISO-2022-KR"),
        *(("今日天气\n", "hz", "HZ"), (TEXT, "utf-7", "UTF-7"), ("hello there\n", "utf-16-le", "UTF-16LE")),
        ("hello there\n", "utf-16-be", "UTF-16BE"),
    ],
)
def test_an_encoding_that_looks_like_utf8_is_named(text, codec, expected):
    found = encodings.encoding(text.encode(codec).decode("utf-8"))
    tool = "Python's codec hz" if codec == "hz" else f"iconv -f {expected} -t UTF-8"
    assert found == f"{expected}, not UTF-8; convert it with {tool}"


@pytest.mark.parametrize(
    "text",
    [
        *("", TEXT, "\x1b[31mred\x1b[0m", "\x1b(0lqk", "C++ a+b+c +1234-5678", r"\cite~{ab~} and ~{x}"),
        "a\0b c d e f g h",
        base64.encodebytes(random.Random(1).randbytes(100_000)).decode(),
        "GET /?q=+foo+bar+BazQux HTTP\n" * 9,
    ],
)
def test_other_text_is_utf8(text):
    assert encodings.encoding(text) is None
