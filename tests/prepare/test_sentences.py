"""Sentences out of paragraphs, in every script."""
# ruff: noqa: RUF001

import numpy as np
import pytest

from tftrain.prepare import sentences
from tftrain.prepare.sentences import split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ('He said "Stop." Then (so it goes.) He left.', ['He said "Stop."', "Then (so it goes.)", "He left."]),
        ("Use e.g. The mean, i.e. Average of Dr. Smith.", ["Use e.g. The mean, i.e. Average of Dr. Smith."]),
        ("See tf.data and 3.5 in foo.py for more.", ["See tf.data and 3.5 in foo.py for more."]),
        ("It ends. Dr. Smith came.", ["It ends.", "Dr. Smith came."]),
        ("the U.S. Army. It", ["the U.S. Army.", "It"]),
        ("It ends. 'A quote' begins.", ["It ends.", "'A quote' begins."]),
        ("no capital. after it", ["no capital. after it"]),
        ("Één. Über alles. Ça va.", ["Één.", "Über alles.", "Ça va."]),
        ("これは一つ。これは二つ。", ["これは一つ。", "これは二つ。"]),
        ("", []),
        ("Is it? Yes! No?! Wait... Then go.", ["Is it?", "Yes!", "No?!", "Wait...", "Then go."]),
        ("¿Qué tal? ¡Bien! ¿Y tú?", ["¿Qué tal?", "¡Bien!", "¿Y tú?"]),
        ("Fertig. »Ja.« So ist es. „Nein.“", ["Fertig.", "»Ja.«", "So ist es.", "„Nein.“"]),
        ("Он ушёл. Она осталась? Нет. — Да.", ["Он ушёл.", "Она осталась?", "Нет.", "— Да."]),
        *(("он и т. д. ушёл", ["он и т. д. ушёл"]), ("Έφυγε. Έμεινε.", ["Έφυγε.", "Έμεινε."])),
        *(
            ("הוא הלך. היא נשארה.", ["הוא הלך.", "היא נשארה."]),
            ("그는 갔다. 그녀는 남았다.", ["그는 갔다.", "그녀는 남았다."]),
        ),
        *(
            ("他走了。她留下！真的？！是。", ["他走了。", "她留下！", "真的？！", "是。"]),
            ("他说：“走吧。”她留下。", ["他说：“走吧。”", "她留下。"]),
        ),
        *(("ﾃｽﾄ｡ﾃｽﾄ｡", ["ﾃｽﾄ｡", "ﾃｽﾄ｡"]), ("値は３．１４です．次の文．", ["値は３．１４です．", "次の文．"])),
        *(("هل ذهب؟ نعم. لا.", ["هل ذهب؟", "نعم.", "لا."]), ("وہ گیا۔ وہ رہی۔وہ", ["وہ گیا۔", "وہ رہی۔", "وہ"])),
        ("वह गया। वह रही।। अंत॥", ["वह गया।", "वह रही।।", "अंत॥"]),
        *(("Նա գնաց։ Նա մնաց։", ["Նա գնաց։", "Նա մնաց։"]), ("እሱ ሄደ። እሷ ቀረች፧ አዎ።", ["እሱ ሄደ።", "እሷ ቀረች፧", "አዎ።"])),
        *(("គាត់ទៅ។ នាងនៅ៕", ["គាត់ទៅ។", "នាងនៅ៕"]), ("သူသွားသည်။သူမနေသည်။", ["သူသွားသည်။", "သူမနေသည်။"])),
        ("เขาไปแล้ว เธออยู่ที่นี่", ["เขาไปแล้ว", "เธออยู่ที่นี่"]),
        *(("สัตว์ต่าง ๆ มี 3 ตัว", ["สัตว์ต่าง ๆ มี 3 ตัว"]), ("ລາວໄປແລ້ວ ນາງຢູ່", ["ລາວໄປແລ້ວ", "ນາງຢູ່"])),
        ("Hello. 你好。Hello.", ["Hello.", "你好。", "Hello."]),
    ],
)
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


def test_all_marks_of_unicode_end_sentences():
    regex = pytest.importorskip("regex")
    marks = regex.findall(r"\p{Sentence_Terminal}", "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000)))))
    assert len(marks) > 150
    for mark in marks:
        assert split_sentences(f"xyz{mark} Abc") == [f"xyz{mark}", "Abc"], hex(ord(mark))


def test_long_lower_cased_text_is_split():
    sentence = "it was, e.g. in the morning, a cold day that mr. smith did not like at all."
    paragraph = " ".join([sentence] * 20)
    assert split_sentences(paragraph) == [sentence] * 20


def test_capitals_decide_in_long_text_as_in_short_text():
    paragraph = " ".join(["It was approx. five. So they say, cf. the second chapter of foo.py."] * 20)
    assert len(split_sentences(paragraph)) == 40


def test_no_character_is_lost():
    rng = np.random.default_rng(0)
    characters = [*'aAäж漢あ. .!?。،؟۔।ๆกข (("«»3 \u3000', "Mr. ", "e.g. "]
    for _ in range(2000):
        paragraph = "".join(rng.choice(characters, rng.integers(0, 60)))
        for longest in (300, 10):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sentences, "_LONG_SENTENCE", longest)
                parts = split_sentences(paragraph)
            assert "".join("".join(parts).split()) == "".join(paragraph.split())
            assert all(part and part == part.strip() for part in parts)


def test_ascii_text_is_split_as_any_text():
    rng = np.random.default_rng(1)
    characters = [*"aAbB1 .!?()\"'[]{}- ", ". ", "etc. ", "? "]
    for _ in range(5000):
        paragraph = "".join(rng.choice(characters, rng.integers(0, 60)))
        # A character that is not ASCII selects the rules for all scripts.
        with_marker = split_sentences(f"{paragraph} \u00e9")
        joined = split_sentences(f"{paragraph} e")
        assert [part.replace("\u00e9", "e") for part in with_marker] == joined
