"""A labelled file is predicted without its labels."""

import json

import pytest

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.files.errors import DataError
from tftrain.inference import input_texts

WITH_PAIRS = FineTuningConfig(train_file="x", text_column="a", text_pair_column="b")
SQUAD = {"context": "a\tpath", "question": "q", "id": 1, "answers": {"text": ["path"], "answer_start": [2]}}
NESTED = {"data": [{"paragraphs": [{"context": "a", "qas": [{**SQUAD, "answers": []}]}]}]}


@pytest.mark.parametrize(
    ("name", "text", "task", "settings", "expected"),
    [
        ("x.csv", "text,label\na bed,good\n", "classification", None, ["a bed"]),
        ("x.tsv", "sentence\tlabel\na bed\tgood\n", "classification", None, ["a bed"]),
        ("x.tsv", "a bed\tgood\n", "classification", None, ["a bed\tgood"]),
        ("x.jsonl", '{"label": 1, "text": "a\\tbed"}\n', "classification", None, ["a\tbed"]),
        ("x.csv", "text,text_pair,label\na,b,1\n", "classification", None, ["a\tb"]),
        ("x.csv", "a,b,label\nx,y,1\n", "classification", WITH_PAIRS, ["x\ty"]),
        ("x.csv", "text,text_pair\na,b\n", "classification", FineTuningConfig(train_file="x"), ["a"]),
        ("x.csv", "question,context\nq,a path\n", "question_answering", None, ["q\ta path"]),
        ("x.json", json.dumps(NESTED), "question_answering", None, ["q\ta path"]),
        ("x.json", json.dumps([SQUAD]), "question_answering", None, ["q\ta path"]),
        ("x.conll", "# c\na\tB-A\nbed\tO\n", "token_classification", None, ["a bed"]),
        ("x.jsonl", '{"prompt": "a"}\n', "completion", None, ["a"]),
        ("x.txt", "\ufefftext,label\nhello\r\n", "classification", None, ["text,label", "hello"]),
    ],
)
def test_the_texts_of_a_table_are_read_and_its_labels_are_not(tmp_path, name, text, task, settings, expected):
    path = tmp_path / name
    path.write_bytes(text.encode())
    assert [each for _, each in input_texts.read(str(path), task, settings)] == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.csv", "the columns are body, label; expected one of text, sentence"),
        ("x.parquet", "damaged, cut short or of another format"),
        ("x.xlsx", "expected one text a line"),
    ],
)
def test_a_table_without_a_text_is_refused(tmp_path, name, message):
    (tmp_path / name).write_text("body,label\na,b\n")
    with pytest.raises(DataError, match=message):
        list(input_texts.read(str(tmp_path / name), "classification", None))
