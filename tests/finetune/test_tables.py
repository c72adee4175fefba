"""Rows of TSV, CSV and JSONL files, and examples made of them."""

import dataclasses
import json

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from tftrain.config.data import DataConfig
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model import ModelConfig
from tftrain.files.errors import DataError
from tftrain.finetune import conll, examples, squad
from tftrain.finetune.examples import with_model_labels
from tftrain.finetune.tables import FileNotes, read_table
from tftrain.inputs.labelled import Labelled
from tftrain.inputs.tokenizers import TokenizerChoice
from tftrain.tokenizer.vocabulary import SPECIAL_TOKENS


def write(folder, name, text):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


QUOTED = [{"text": 'a "quote', "label": "1"}, {"text": "b,c", "label": "2"}]
PLAIN = [{"text": "a, b", "label": "1"}, {"text": "c", "label": "2"}]


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("x.tsv", 'text\tlabel\na "quote\t1\n\nb,c\t2', QUOTED),
        ("x.tsv", '\ufefftext\tlabel\r\na "quote\t1\r\nb,c\t2\r\n', QUOTED),
        ("x.csv", 'text,label\n"a ""quote",1\n"b,c",2\n', QUOTED),
        ("x.jsonl", '{"text": "a \\"quote", "label": "1"}\n\n{"text": "b,c", "label": "2"}\n', QUOTED),
        # Files of other programs.
        ("x.csv", "text;label\na, b;1\nc;2\n", PLAIN),
        ("x.csv", "sep=;\ntext;label\na, b;1\nc;2\n", PLAIN),
        ("x.csv", "text|label\na, b|1\nc|2\n", PLAIN),
        ("x.csv", 'text\tlabel\n"a, b"\t1\nc\t2\n', PLAIN),
        ("x.csv", 'text,label\n"a, b",1\n\ufefftext,label\nc,2\n', PLAIN),
        ("x.tsv", "text\tlabel\na, b\t1\ntext\tlabel\nc\t2\n", PLAIN),
        *(("x.tsv", "text\tlabel\ra, b\t1\rc\t2\r", PLAIN), ("x.json", json.dumps(PLAIN, indent=1), PLAIN)),
        *(("x.json", json.dumps({"data": PLAIN}), PLAIN), ("x.json", "\n".join(map(json.dumps, PLAIN)), PLAIN)),
        *(("x.jsonl", "\r".join(map(json.dumps, PLAIN)), PLAIN), ("x.jsonl", json.dumps(PLAIN), PLAIN)),
    ],
)
def test_formats_give_the_same_rows(tmp_path, name, text, rows):
    assert [row.values for row in read_table(write(tmp_path, name, text))] == rows


def test_a_field_of_csv_may_have_lines(tmp_path):
    path = write(tmp_path, "x.csv", 'text,label\n"one\ntwo",a\nthree,b\n')
    found = {row.place: row.values["text"] for row in read_table(path)}
    assert found == {f"{path}, line 3": "one\ntwo", f"{path}, line 4": "three"}


def test_columns_without_a_header_are_numbers(tmp_path):
    path = write(tmp_path, "x.tsv", "id\ta\t*\ttext\nid\tb\t\tmore")
    settings = FineTuningConfig(train_file=path, header=False, text_column="3", label_column="1")
    found = examples.read_examples(settings, "classification", "train")
    assert [(each.texts, each.label) for each in found] == [(("text",), "a"), (("more",), "b")]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.tsv", "text\ttext\na\tb\n", "line 1: two columns have the same name"),
        ("x.jsonl", '{"text": "a"}\n{"text": "a", "text": "b"}\n', "line 2: not JSON: a name occurs twice"),
        ("x.jsonl", "[1]\n", "line 1: expected a JSON object"),
        ("x.csv", "text,label\n中文,x\n".encode("gb18030"), "byte 11: not UTF-8; .*iconv -f GB18030 -t UTF-8"),
        ("x.csv", "text,label\na,x\n".encode("utf-16"), "byte 0: not UTF-8; .*iconv -f UTF-16 -t UTF-8"),
        ("x.csv", "text,label\nGrüße \x81,a\n".encode("latin-1"), "iconv -f "),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path, name, text, message):
    path = write(tmp_path, name, text)
    with pytest.raises(DataError, match=f"^{path}.*{message}"):
        read_table(path)


EQUAL = tuple(f"{'0' * zeros}1" for zeros in range(9, -1, -1))


def read(tmp_path, rows, task, **settings):
    path = write(tmp_path, "x.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return examples.read_examples(FineTuningConfig(train_file=path, **settings), task, "train")


SEVERAL = [["x", "y"], "y|z", "", "x | z", 0, None, [0, True]]
CLASSES = [("x", "y"), ("y", "z"), (), ("x", "z"), ("0",), (), ("0", "true")]


@pytest.mark.parametrize(
    ("values", "task", "settings", "labels"),
    [
        (SEVERAL, "multi_label", {}, CLASSES),
        (["y|z"], "multi_label", {"label_separator": ""}, [("y|z",)]),
        # The positions of classes, and classes.
        ([[0, 1, 0], [1.0, 0.0, 1.0], [False, False, True]], "multi_label", {}, [("1",), ("0", "2"), ("2",)]),
        ([[7, 1]], "multi_label", {}, [("7", "1")]),
        (["3,14", "-2,5", "1,2345", "1.5"], "regression", {}, [3.14, -2.5, 1.2345, 1.5]),
    ],
)
def test_labels_are_lists_separated_or_numbers(tmp_path, values, task, settings, labels):
    found = read(tmp_path, [{"text": "a", "label": value} for value in values], task, **settings)
    assert [each.label for each in found] == labels
    if labels is CLASSES:
        assert examples.labels_of(found, task) == ("0", "true", "x", "y", "z")


@pytest.mark.parametrize(
    ("labels", "ordered"),
    [
        ((10, 9, "2", -1), ("-1", "2", "9", "10")),
        # Python does not read the last one.
        (("2", "10", "1" * 5000), ("10", "1" * 5000, "2")),
        # A set of texts has another order in each process.
        (EQUAL, EQUAL),
    ],
)
def test_classes_that_are_numbers_have_their_order(tmp_path, labels, ordered):
    found = read(tmp_path, [{"text": "a", "label": label} for label in labels], "classification")
    assert examples.labels_of(found, "classification") == ordered


@pytest.mark.parametrize(
    ("row", "task", "message"),
    [
        ({"text": 5, "label": "a"}, "classification", "text is 5; expected a text"),
        ({"text": "a", "label": None}, "classification", "label is None; expected a label"),
        ({"text": "a", "label": {"x": 1}}, "multi_label", "label is {'x': 1}; expected a label"),
        ({"text": "a", "label": ["x", None]}, "multi_label", "label is None; expected a label"),
        ({"sentence1": "a", "sentence2": "b", "label": "c"}, "classification", "sentence2, but no --text_pair_column"),
        ({"text": "a", "label": "1_0"}, "regression", "label is '1_0'; expected a number"),
        ({"text": "a", "label": "nan"}, "regression", "label is 'nan'; expected a number"),
        ({"text": "a", "label": "1,234"}, "regression", "label is '1,234'; expected a number"),
        ({"body": "a", "label": "b"}, "classification", "--text_column is not given; expected one of its columns"),
        ({"text": "a", "class": "b"}, "classification", "--label_column is not given; expected one of its columns"),
    ],
)
def test_an_example_without_text_or_label_is_refused(tmp_path, row, task, message):
    with pytest.raises(DataError, match="line 1") as error:
        read(tmp_path, [row], task)
    assert message in str(error.value)


def test_the_names_of_columns_may_have_capitals(tmp_path):
    assert read(tmp_path, [{"Text": "a", "Label ": "b"}], "classification")[0][1:] == (("a",), "b")


def labelled(settings, **model):
    choice = TokenizerChoice(settings.tokenizer_dir, None, None, None, False, True)
    return Labelled(settings, DataConfig(), ModelConfig(task="classification", **model), choice)


def test_the_log_counts_damaged_lines_once_where_a_source_is_opened(tmp_path, caplog):
    vocab = "".join(f"{token}\n" for token in (*SPECIAL_TOKENS, "a", "b"))
    write(tmp_path, "vocab.txt", vocab)
    text = "question1\tquestion2\tis_duplicate\n"
    text += "a\n" + "a\tb\t0\n" * 3 + "a\tb\n"
    path, _ = (write(tmp_path, name, text) for name in ("train.tsv", "dev.tsv"))
    settings = FineTuningConfig(glue_task="qqp", glue_dir=str(tmp_path), tokenizer_dir=str(tmp_path))
    opened = labelled(settings, labels=("0", "1"))
    caplog.set_level("INFO")
    assert opened.problems("train", 0) == []
    assert not caplog.messages
    assert len(opened.examples("train")) == 3
    assert caplog.messages == [f"{path}: 2 damaged lines are left out, 3 are read"]


GLUE = {
    "cola": ("gj04\t1\t\tA sentence.\ngj04\t0\t*\tAnother.\n", (("A sentence.",), "1")),
    "sst2": ("sentence\tlabel\na film\t0\n", (("a film",), "0")),
    "mrpc": ('Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said "no\tShe\n', (('He said "no', "She"), "1")),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tn\tf\t2012\t1\tn\tn\tA\tB\t5.000\n",
        (("A", "B"), 5.0),
    ),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\nbroken\n1\t2\t3\tA?\tB?\t0\n", (("A?", "B?"), "0")),
    "mnli": ("index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tA\tB\tneutral\tneutral\n", (("A", "B"), "neutral")),
    "qnli": ("index\tquestion\tsentence\tlabel\n0\tA?\tB\tnot_entailment\n", (("A?", "B"), "not_entailment")),
    "rte": ("index\tsentence1\tsentence2\tlabel\n0\tA\tB\tentailment\n", (("A", "B"), "entailment")),
    "wnli": ("index\tsentence1\tsentence2\tlabel\n0\tA\tB\t1\n", (("A", "B"), "1")),
}


@pytest.mark.parametrize("name", GLUE)
def test_the_layouts_of_glue(tmp_path, name):
    text, first = GLUE[name]
    write(tmp_path, "train.tsv", text)
    settings = FineTuningConfig(glue_task=name, glue_dir=str(tmp_path))
    found = examples.read_examples(settings, "regression" if name == "stsb" else "classification", "train")
    assert (found[0].texts, found[0].label) == first


def test_a_quote_without_an_end_is_refused_and_a_text_of_several_lines_is_not(tmp_path):
    text = 'text,label\ngood name,pos\n"bad start,neg\nlist value,pos\nerror type",pos\nshape,neg\n'
    with pytest.raises(DataError, match=r"line 5: 2 line breaks in a field, .*'list value', 'pos'.*close the quote"):
        read_table(write(tmp_path, "x.csv", text))
    text = 'text,label\n"bad start,neg\nerror type",pos\nshape,neg\n'
    with pytest.raises(DataError, match="line 3: 1 line breaks in a field"):
        read_table(write(tmp_path, "x.csv", text))
    for mark in ";\t":
        with pytest.raises(DataError, match="line 3: 1 line breaks in a field"):
            read_table(write(tmp_path, "x.csv", text.replace(",", mark)))
    letter = 'text,label\nDear,x\n"Dear, sir\nThanks, bye\nyours, Bob",pos\nshape,neg\n'
    assert len(read_table(write(tmp_path, "y.csv", letter))) == 3


def test_the_columns_are_those_of_all_rows(tmp_path):
    rows = [{"text": "name", "label": "x"}, {"text": "key", "text_pair": "list", "label": "y"}]
    with pytest.raises(DataError, match="line 2: there is a column text_pair, but no --text_pair_column"):
        read(tmp_path, rows, "classification")
    assert len(read(tmp_path, rows, "classification", text_pair_column="text_pair", skip_bad_rows=True)) == 1


def test_a_number_in_another_column_is_no_class(tmp_path, caplog):
    caplog.set_level("INFO")
    notes = FileNotes()
    row = {"text": "a", "score": 0.91, "category": "x"}
    with pytest.raises(DataError, match="--label_column is not given; expected one of its columns text, score, cat"):
        read(tmp_path, [row], "classification")
    path = write(tmp_path, "x.jsonl", json.dumps(row))
    settings = FineTuningConfig(train_file=path, label_column="category")
    assert examples.read_examples(settings, "classification", "train", notes)[0].label == "x"
    assert [text for _, text in notes] == [f"{path}: reads the columns text, category, not score"]


@pytest.mark.parametrize("label", ["['x', 'y']", '["x"]', "[0 1 0]", "('x', 'y')", "{'x'}"])
def test_a_list_that_became_a_text_is_refused(tmp_path, label):
    with pytest.raises(DataError, match=r"line 1: label is .*, a list in a text; expected classes with '\|' between"):
        read(tmp_path, [{"text": "a", "label": label}], "multi_label")


def test_a_point_that_may_separate_thousands_is_said(tmp_path, caplog):
    settings = FineTuningConfig(train_file=write(tmp_path, "x.csv", "text,label\na,1.234\nb,12.500\nc,980\n"))
    notes = FileNotes()
    assert examples.read_examples(settings, "regression", "train", notes)[0].label == 1.234
    assert "1.234 is read as a fraction; if the point separates thousands" in notes[0][1]


PAIRS = [{"text": str(n), "text_pair": "x", "label": label} for n, label in enumerate([1, 0, True, "0", 0.8, -1])]


def test_pairs_that_do_not_belong_together_are_not_trained(tmp_path, caplog):
    caplog.set_level("INFO")
    path = write(tmp_path, "x.jsonl", "".join(json.dumps(row) + "\n" for row in PAIRS))
    settings, notes = FineTuningConfig(train_file=path, eval_file=path), FileNotes()
    found = examples.read_examples(settings, "embedding", "train", notes)
    assert [(each.texts[0], each.label) for each in found] == [("0", None), ("2", None), ("4", None)]
    words = "pairs with a label above 0 belong together; the 3 others of 6 are left out"
    assert [text for _, text in notes] == [f"{path}: {words}"]
    named = FineTuningConfig(train_file=path, eval_file=path, label_column="label")
    assert len(examples.read_examples(named, "embedding", "train")) == 3
    assert [each.label for each in examples.read_examples(named, "embedding", "eval")] == [1, 0, 1, 0, 0.8, -1]
    with pytest.raises(DataError, match="label is 'contradiction'; expected a number"):
        read(tmp_path, [{"text": "a", "text_pair": "b", "label": "contradiction"}], "embedding")


def test_one_bad_row_is_left_out_and_counted(tmp_path, caplog):
    caplog.set_level("INFO")
    text = 'text,label\na,x\nb\n,y\n"c",\nd,y\n'
    settings = FineTuningConfig(train_file=write(tmp_path, "x.csv", text), tokenizer_dir=str(tmp_path))
    with pytest.raises(DataError, match=r"line 3: 1 fields; .*leave such rows out with --skip_bad_rows"):
        labelled(settings).examples("train")
    found = labelled(dataclasses.replace(settings, skip_bad_rows=True)).examples("train")
    assert [each.label for each in found] == ["x", "y", "y"]
    messages = [message.rpartition(": ")[2] for message in caplog.messages]
    assert messages == [f"1 damaged lines are left out, {count} are read" for count in (4, 3)]


def test_examples_have_the_names_of_the_model(caplog):
    caplog.set_level("INFO")
    rows = [examples.TextExample("x, line 1", ("a",), "0"), examples.TextExample("x, line 2", ("b",), "1.0")]
    notes = FileNotes()
    found = with_model_labels(rows, "classification", ("LABEL_0", "LABEL_1"), notes)
    assert [each.label for each in found] == ["LABEL_0", "LABEL_1"]
    assert [text for _, text in notes] == ["classes are read by the names of the model: 0 as LABEL_0, 1.0 as LABEL_1"]
    several = [examples.TextExample("x, line 1", ("a",), ("A", "b", "a"))]
    assert with_model_labels(several, "multi_label", ("a", "b"), notes)[0].label == ("a", "b")
    with pytest.raises(DataError, match=r"x, line 2: the label '1.0' is not one of the model's: 0, 2; name classes as"):
        with_model_labels(rows, "classification", ("0", "2"), notes)


TAGGED = [{"tokens": ["a", "b"], "ner_tags": [0, 1], "vector": [0.5, 1.5], "text": "a"}] * 3


def saved(folder, kind, rows, schema=None):
    """Writes rows as Parquet, an Arrow stream or file, or a folder of `datasets`; returns the path."""
    path, table = folder / f"rows.{kind}", pyarrow.Table.from_pylist(rows, schema)
    if kind == "datasets":
        datasets.Dataset(table).save_to_disk(path, num_shards=2)
    elif kind == "parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=2)
    else:
        with (pyarrow.ipc.new_file if kind == "file.arrow" else pyarrow.ipc.new_stream)(path, table.schema) as writer:
            writer.write_table(table, 2)
    return str(path)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "file.arrow", "datasets"])
def test_columns_of_other_programs_give_the_rows_of_json(tmp_path, kind):
    rows = [{"text": f"text {n}", "label": n % 2, "score": n / 2, "none": None, "text_pair": "é"} for n in range(5)]
    path = saved(tmp_path, kind, rows)
    assert [row.values for row in read_table(path)] == rows
    files = [path] if kind != "datasets" else [f"{path}/data-0000{n}-of-00002.arrow" for n in (0, 1)]
    assert [row.place for row in read_table(path)][-1] == f"{files[-1]}, row {len(rows) - 3 * (len(files) - 1)}"
    settings = FineTuningConfig(train_file=path, label_column="score", text_pair_column="text_pair")
    (*_, last) = examples.read_examples(settings, "regression", "train")
    assert (last.texts, last.label) == (("text 4", "é"), 2.0)


@pytest.mark.parametrize("kind", ["parquet", "datasets"])
def test_lists_and_structs_of_tables_are_those_of_json(tmp_path, kind):
    rows = read_table(saved(tmp_path, kind, TAGGED))
    assert [{**row.values, "vector": TAGGED[0]["vector"]} for row in rows] == TAGGED
    assert "list" in str(rows[0].values["vector"])  # the type, as nobody reads vectors
    assert conll.read_sentences(str(tmp_path / f"rows.{kind}"))[2][2:4] == (("a", "b"), ("0", "1"))
    (chats := tmp_path / "chats").mkdir()
    messages = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 2
    assert [row.values for row in read_table(saved(chats, kind, messages))] == messages
    (questions := tmp_path / "questions").mkdir()
    row = {"context": "a b", "question": "c", "answers": {"text": ["b"], "answer_start": [2]}}
    question, _ = squad.read_questions(saved(questions, kind, [{"id": name, **row} for name in "ab"]))
    assert (question.context, question.answers) == ("a b", ("b",))


TEXTS = pyarrow.list_(pyarrow.string())
LISTS = [
    ("datasets", TEXTS, pyarrow.list_(pyarrow.float32())),
    ("parquet", TEXTS, pyarrow.list_(pyarrow.float16())),
    ("parquet", pyarrow.list_(pyarrow.string(), 2), pyarrow.list_(pyarrow.float64(), 3)),
    ("parquet", pyarrow.large_list(pyarrow.large_string()), pyarrow.large_list(pyarrow.float32())),
    ("file.arrow", pyarrow.list_(pyarrow.dictionary(pyarrow.int8(), pyarrow.string())), pyarrow.list_(pyarrow.int64())),
    ("arrow", pyarrow.list_view(pyarrow.string_view()), pyarrow.list_view(pyarrow.float32())),
]


@pytest.mark.parametrize(("kind", "texts", "scores"), LISTS)
@pytest.mark.parametrize("column", ["score", " Label", "teacher"])
def test_scores_of_a_teacher_are_read_from_lists_of_any_type(tmp_path, kind, texts, scores, column):
    rows = [{"query": "é", "passage": "b", "neg": ["c", "d"], column: [4 * n, 2, 1]} for n in range(3)]
    types = pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), pyarrow.string(), texts, scores
    path = saved(tmp_path, kind, rows, pyarrow.schema(zip(rows[0], types, strict=True)))
    name = "teacher" if column == "teacher" else None
    settings = FineTuningConfig(train_file=path, embedding_loss="kl", label_column=name)
    found = examples.read_examples(settings, "embedding", "train")
    assert [each[1:] for each in found] == [(("é", "b", "c", "d"), (4 * n, 2, 1)) for n in range(3)]


def test_lists_of_fractions_without_a_number_are_refused_and_flags_of_classes_may_be_fractions(tmp_path):
    rows = [{"text": "a", "text_pair": "b", "negative": "c", "score": [0.5, each]} for each in (None, 1, 2)]
    settings = FineTuningConfig(train_file=saved(tmp_path, "parquet", rows), embedding_loss="margin_mse")
    with pytest.raises(DataError, match=r"rows.parquet, row 1: score is None; expected a number"):
        examples.read_examples(settings, "embedding", "train")
    settings = dataclasses.replace(settings, skip_bad_rows=True)
    assert [each.label for each in examples.read_examples(settings, "embedding", "train")] == [(0.5, 1), (0.5, 2)]
    path = saved(tmp_path, "parquet", [{"text": "a", "labels": [1.0, 0.0, 1.0]}, {"text": "b", "labels": [0.0] * 3}])
    found = examples.read_examples(FineTuningConfig(train_file=path), "multi_label", "train")
    assert [each.label for each in found] == [("0", "2"), ()]


def test_a_folder_has_one_split(tmp_path):
    for name in ("train-00000-of-00002", "train-00001-of-00002"):
        saved(tmp_path, "parquet", PLAIN)
        (tmp_path / "rows.parquet").rename(tmp_path / f"{name}.parquet")
    assert [row.values for row in read_table(str(tmp_path))] == PLAIN * 2
    saved(tmp_path, "parquet", PLAIN)
    write(tmp_path, "README.md", "a card")
    with pytest.raises(
        DataError, match=r"several splits, with rows.parquet, train-.*; expected the folder or the file"
    ):
        read_table(str(tmp_path))
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no .parquet or .arrow file; expected the folder or the file of one split"):
        read_table(str(empty))


def test_a_run_knows_the_content_of_a_folder(tmp_path):
    write(tmp_path, "vocab.txt", "".join(f"{token}\n" for token in (*SPECIAL_TOKENS, "a")))
    path = saved(tmp_path, "datasets", PLAIN)
    settings = FineTuningConfig(train_file=path, tokenizer_dir=str(tmp_path))
    before = labelled(settings).identity["the labelled train file"]
    assert before == labelled(settings).identity["the labelled train file"]
    datasets.Dataset.from_list(QUOTED).save_to_disk(path)
    assert labelled(settings).identity["the labelled train file"] != before


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"text", "damaged, cut short or of another format"), (b"PAR1" * 9, "damaged"), (b"", "damaged")],
)
def test_a_damaged_table_is_refused(tmp_path, content, message):
    path = write(tmp_path, "x.parquet", content)
    with pytest.raises(DataError, match=f"^{path}: {message}"):
        read_table(path)
    pyarrow.parquet.write_table(pyarrow.table([["a"], ["b"]], ["text", "text"]), path)
    with pytest.raises(DataError, match="two columns have the same name"):
        read_table(path)
