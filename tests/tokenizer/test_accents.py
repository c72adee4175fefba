"""Letters keep their marks where they are letters of their own, from the text to the vocabulary and the tokens."""

import json
import logging

import pytest

from tests.kit import corpora
from tftrain.data.manifest import NAME
from tftrain.formats import run_folder
from tftrain.prepare.preparation import prepare
from tftrain.tokenizer import accents
from tftrain.tokenizer.normalization import bert_words
from tftrain.tokenizer.vocabulary import read_vocabulary

# A text of each language, and letters of it that lose a mark, or are decomposed, where accents are stripped.
LANGUAGES = {
    "japanese": ("データがネットワークで送られる。プログラムはファイルを読む。ただし、バグがある。", "デがグで"),
    "korean": ("새로운 기능들이 커널에 추가되었다. 문서는 여기에 있다.", "새로운들널"),
    "russian": ("Этот файл ещё не прочитан, и новый адрес чужой. Ёлка зелёная, йод жёлтый.", "йё"),
    "hindi": ("यह फ़ाइल अभी तक नहीं पढ़ी गई है। हिन्दी में लिखा हुआ पाठ।", "़्ंु"),
    "thai": ("แฟ้มนี้ยังไม่ได้อ่าน และที่อยู่ใหม่", "้ีั่"),
    "arabic": ("لم يُقرأ هذا الملف بعد، والعنوان الجديد أفضل. آخر سؤال هُنا.", "أآؤُ"),
    "vietnamese": ("Tệp này chưa được đọc, và địa chỉ mới tốt hơn. Tiếng Việt có dấu.", "ệàượị"),
    "turkish": ("İstanbul'da güneş çok sıcak. Dosya henüz okunmadı, yeni adres değişik ve ışık söndü.", "üşçğö"),  # noqa: RUF001
}


def prepared(prepare_config, tmp_path, text, **changes):
    changes = {"vocab_file": None, "vocab_size": 250, "eval_fraction": 0.0} | changes
    return prepare(prepare_config(tmp_path / "out", text, **changes))


@pytest.mark.parametrize("language", LANGUAGES)
def test_letters_of_a_language_survive(prepare_config, tmp_path, language):
    text, letters = LANGUAGES[language]
    # English words, as in the text of manual pages.
    manifest = prepared(prepare_config, tmp_path, f"{text}\nOptions of a program.\n\n{text}")
    assert (manifest.lower_case, manifest.strip_accents) == (True, False)
    tokenizer = run_folder.tokenizer_of(manifest.folder)
    assert set(letters) <= set("".join(tokenizer.vocabulary.tokens))
    assert bert_words(tokenizer.lower_case, tokenizer.strip_accents)(letters[0]) == [letters[0]]


def test_english_text_loses_the_few_marks_that_it_has(prepare_config, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    manifest = prepared(prepare_config, tmp_path, corpora.text(60) + "\nA café.\n")
    assert manifest.strip_accents is True
    tokens = set("".join(read_vocabulary(manifest.path("vocab.txt"), "wordpiece").tokens))
    assert "é" not in tokens
    (line,) = [line for line in caplog.messages if "lose a mark" in line]
    assert line.split()[-2:] == ["0.00%", "é→e"]


@pytest.mark.parametrize(
    ("text", "strips"),
    [
        *(("plain text" * 1000, True), ("é" + "e" * 999, True), ("éé" + "e" * 998, False), ("и" * 1000, False)),
        *(("中" * 600 + "e" * 400, False), ("가" + "e" * 999, True), ("가나" + "e" * 998, False)),
        *(("\u2764\ufe0f" * 100 + "e", True), ("e" * 10 + "1234567890" * 100 + "\u2260" * 100, True)),
    ],
)
def test_rule_of_a_new_vocabulary(text, strips):
    assert accents.strips(accents.count_letters([text])) is strips


def test_share_of_lost_marks_is_said_with_examples_and_a_warning(prepare_config, tmp_path, caplog):
    text, _ = LANGUAGES["russian"]
    with caplog.at_level(logging.INFO):
        prepared(prepare_config, tmp_path, f"{text}\n\n{text}", strip_accents="true", deduplicate="none")
    (line,) = [line for line in caplog.messages if line.startswith("letters that lose")]
    letters = [letter for letter in text * 2 if letter.isalpha()]
    lost = sum(letter in "йёЁ" for letter in letters)
    assert line.split()[-5:-2] == [str(lost), f"{lost / len(letters):.2%}", "й→и"]
    expected = f"{lost / len(letters):.2%} of the letters lose a mark, such as й→и ё→е Ё→Е: words that differ"  # noqa: RUF001
    assert expected in caplog.text
    assert "use --strip_accents=false" in caplog.text


@pytest.mark.parametrize(
    ("beside", "flag", "strips"),
    [
        ({}, "auto", True),
        ({}, "false", False),
        ({"tokenizer_config.json": {"strip_accents": False}}, "auto", False),
        ({"tokenizer_config.json": {"strip_accents": False}}, "true", True),
        ({"tokenizer_config.json": {"strip_accents": None}}, "auto", True),
        ({NAME: {"strip_accents": False}}, "auto", False),
    ],
)
def test_accents_of_a_given_vocabulary(prepare_config, tmp_path, beside, flag, strips):
    vocab = corpora.vocab_file(tmp_path / "vocab.txt", extra=["и", "й"])
    for name, content in beside.items():
        (tmp_path / name).write_text(json.dumps(content))
    text = "й text. The model reads.\n\nй data."
    manifest = prepared(prepare_config, tmp_path, text, vocab_file=str(vocab), vocab_size=None, strip_accents=flag)
    assert manifest.strip_accents is strips
