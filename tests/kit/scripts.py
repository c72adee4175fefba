"""Lines of text in twelve scripts, with what tokenizers stumble over: marks, other spaces, emoji, code."""

import random

_RANGES = {
    "latin": [*range(0x61, 0x7B), *range(0xDF, 0x180), *range(0x1E00, 0x1F00)],
    "cyrillic": [*range(0x400, 0x530)],
    "greek": [*range(0x391, 0x3CF), *range(0x1F00, 0x1F16)],
    "arabic": [*range(0x620, 0x660), *range(0xFE8D, 0xFEFD)],
    "hebrew": [*range(0x5D0, 0x5EB), *range(0x5B0, 0x5BE)],
    "devanagari": [*range(0x901, 0x94E), 0x94D, 0x94D],
    "thai": [*range(0xE01, 0xE3B), *range(0xE40, 0xE4F)],
    "chinese": [*range(0x4E00, 0x5200), 0x3002, 0xFF0C],
    "japanese": [*range(0x3041, 0x3097), *range(0x30A1, 0x30FB), *range(0xFF66, 0xFF9F), 0x4E00, 0x65E5],
    "korean": [*range(0xAC00, 0xB000), *range(0x1100, 0x1113), *range(0x1161, 0x1176)],
}
_EMOJI = ["\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea"]
_EMOJI += ["1\ufe0f\u20e3", "\u2764\ufe0f", "\u00a9\ufe0f", "\u2122"]
_CODE = ["def f(x):", "\treturn x[0] != 'it\\'s'", "if (a&&b) {", "  }", "// TODO: <mask> </s> [MASK]", "x=1;y+=2"]
_CODE += ["http://a.b/c?d=e&f"]
_BETWEEN = [*[" "] * 4, ", ", ". ", "  ", "\t", "\u00a0", "\u3000", "-", "'s ", "'re", " 12"]
_BETWEEN += ["\u200b", "\u2581", "\ufb01", "\uff11"]
_MARKS = [0x301, 0x308, 0x323, 0x30A, 0x344, 0x20DD, 0x3099, 0x94D, 0x200D]
SCRIPTS = (*_RANGES, "emoji", "code")


def lines(count: int, seed: int = 0) -> list[str]:
    """Returns lines of each script in turn; words repeat, as in a language."""
    rng = random.Random(seed)
    words = {
        script: ["".join(chr(rng.choice(codes)) for _ in range(rng.randint(1, 7))) for _ in range(400)]
        for script, codes in _RANGES.items()
    }
    words |= {"emoji": _EMOJI, "code": _CODE}
    made = []
    for number in range(count):
        parts = []
        own = words[SCRIPTS[number % len(SCRIPTS)]]
        for _ in range(rng.randint(0, 12)):
            word = own[int(len(own) * rng.random() ** 2)]
            parts += [word, chr(rng.choice(_MARKS)) if rng.random() < 0.05 else "", rng.choice(_BETWEEN)]
        made.append("".join(parts))
    return made
