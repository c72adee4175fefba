"""CoNLL as annotation tools and corpora write it: what is no word is left out, and columns are chosen."""

import json

import pytest

from tftrain.files.errors import DataError
from tftrain.finetune import conll
from tftrain.finetune.tables import FileNotes

UNIVERSAL = (
    "# sent_id = 1\n# text = ab c\n1-2\tab\t_\t_\t_\t_\t_\t_\t_\t_\n1\ta\ta\tDET\t_\t_\t2\tdet\t_\tSpaceAfter=No\n"
    "1.1\tz\tz\tVERB\t_\t_\t_\t_\t_\t_\n2\tc\tc\tNOUN\t_\t_\t0\troot\t_\t_\n"
)
GERMAN = "#\tn-tv.de\t[2010-01-01]\n1\tSchartau\tB-PER\tO\n2\tsagte\tO\tO\n\n#\tx\t[2010-01-02]\n1\tHi\tO\tO\n"


def read(tmp_path, text, *columns, name="x.conll", **more):
    path = tmp_path / name
    path.write_bytes(text.encode())
    return [(each.words, each.tags) for each in conll.read_sentences(str(path), *columns, **more)]


@pytest.mark.parametrize(
    ("text", "words", "tags"),
    [
        ("# id 7a1f\tdomain=en\nmodel _ _ B-A\nvalue _ _ O\n", "model value", "B-A O"),
        ("// note of annotator\nEU B-ORG\nx O\n", "EU x", "B-ORG O"),
        ("#begin document (x); part 000\nEU B-ORG\n\n#end document\n", "EU", "B-ORG"),
        ("EU B-ORG\n# O\n#tag B-X\n// O\n", "EU # #tag //", "B-ORG O B-X O"),
        ("The DT\n# NN\n% NN\n# newdoc\n", "The # %", "DT NN NN"),
        *(("token\ttag\nEU\tB-ORG\nx\tO\n", "EU x", "B-ORG O"), ("Wort Klasse\nEU B-ORG\nx O\n", "EU x", "B-ORG O")),
        *(("word B-A\nx O\n", "word x", "B-A O"), ("EU B-ORG\rx O\r", "EU x", "B-ORG O")),
        *(("EU\tB-ORG\t\nx\tO\t\n", "EU x", "B-ORG O"), ("3 B-N\n4 I-N\n2 O\n", "3 4 2", "B-N I-N O")),
        ("-DOCSTART-\tO\n\nEU\tCafe\u0301\nx\tO\n", "EU x", "Café O"),
        ("10\u00a0000 X B-A\r\n\u3000 O\r\n", "10\u00a0000|\u3000", "B-A O"),
        ("New York \tX\tB-A\n", "New York|", "B-A"),
    ],
)
def test_only_words_become_words(tmp_path, text, words, tags):
    words = tuple(filter(None, words.split("|" if "|" in words else " ")))
    assert read(tmp_path, text) == [(words, tuple(tags.split()))]


def test_sentences_end_at_empty_lines_and_know_their_line(tmp_path):
    text = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\t\n\nPeter\tB-PER\n"
    assert read(tmp_path, text) == [(("EU", "rejects"), ("B-ORG", "O")), (("Peter",), ("B-PER",))]
    assert conll.read_sentences(str(tmp_path / "x.conll"))[1].place == f"{tmp_path}/x.conll, line 7"


def test_columns_are_chosen_by_number_or_by_the_header(tmp_path):
    assert read(tmp_path, UNIVERSAL, "1", "3") == [(("a", "c"), ("DET", "NOUN"))]
    assert read(tmp_path, GERMAN, "1", "2") == [(("Schartau", "sagte"), ("B-PER", "O")), (("Hi",), ("O",))]
    assert read(tmp_path, "pos word ner\nNN EU B-A\nNN x O\n", "word", "ner") == [(("EU", "x"), ("B-A", "O"))]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (UNIVERSAL, (), "line 6: the first column numbers the words; .*--text_column=1"),
        (GERMAN, (), "the first column numbers the words"),
        ("model\tNN\tB-A\nvalue\tNN\t\n", (), "line 2: 'value.*' has an empty column"),
        ("model NN B-A\nbad NN O\nvalue NN\n", (), "line 3: 'value NN' has 2 columns; expected 3"),
        ("New York B-A\nb O\nc O\n", (), "line 1: 'New York B-A' has 3 columns; expected 2"),
        ("1 EU B-A\n2 x O\n\n3 y O\n", (), "the first column numbers the words"),
        ("a X B-A\nb X O\n", ("0", "3"), "--label_column=3: .*expected a number from 0 to 2"),
        ("x 0 The *\nx 1 dog (ORG)\nx 2 sits (A*\nx 3 on *)\n", (), "line 4: the classes are brackets; expected tags"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12\n", (), "git lfs pull"),
    ],
)
def test_a_line_whose_class_is_not_certain_is_refused(tmp_path, text, columns, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, text, *columns)


def test_what_is_left_out_is_counted(tmp_path, caplog):
    caplog.set_level("INFO")
    text = "# id 1\nEU B-ORG\nalone\n\nx O\n"
    notes = FileNotes()
    assert read(tmp_path, text, skips=True, notes=notes) == [(("x",), ("O",))]
    (_, first), (_, second) = notes
    assert "1 lines are no words; the first: '# id 1'" in first
    assert "1 damaged lines are left out, 1 are read" in second


def test_lists_of_words_and_classes_are_sentences(tmp_path):
    row = {"tokens": ["EU", "x"], "ner_tags": [3, 0], "pos_tags": [1, 2]}
    assert read(tmp_path, json.dumps(row) + "\n", name="x.jsonl") == [(("EU", "x"), ("3", "0"))]
    with pytest.raises(DataError, match=r"line 1: tokens is \['EU'\] and ner_tags \[\]; expected lists of words and"):
        read(tmp_path, json.dumps({"tokens": ["EU"], "ner_tags": []}), name="x.jsonl")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\tbed \u00a0 x", ["a", "bed", "\u00a0", "x"]),
        ("東京塔在A1东京。", ["東", "京", "塔", "在", "A1", "东", "京", "。"]),
        ("東京塔 在 东京 。", ["東京塔", "在", "东京", "。"]),
        ("bed.", ["bed."]),
    ],
)
def test_a_text_has_the_words_that_a_file_would_have(text, words):
    assert conll.words_of(text) == words
