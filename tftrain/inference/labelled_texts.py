"""The texts of a labelled file for `tftrain.predict`, which leaves out the labels."""

from collections.abc import Iterator
from pathlib import Path

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.files.errors import DataError
from tftrain.finetune import conll, squad
from tftrain.finetune.examples import PAIR_COLUMNS, TEXT_COLUMNS
from tftrain.finetune.tables import columns_of, read_table, read_text, text_of

_TABLES, _OTHERS = (".csv", ".tsv", ".jsonl", ".json"), (".parquet", ".arrow", ".xlsx")
_FIRST = (*TEXT_COLUMNS, "prompt", "instruction", "question")


def read(path: str, task: str, settings: FineTuningConfig | None) -> Iterator[tuple[str, str]] | None:
    """Returns places and texts of a table, with a tab between the texts of a pair; None: the file has a text a line.

    A TSV file is a table if its first line names the column of a text. The columns are those of the model's run.

    Raises:
        DataError: the file can't be read, or has no such column; the message names the line.
    """
    ending, settings = Path(path).suffix.lower(), settings or FineTuningConfig()
    if ending in _OTHERS:
        raise DataError(f"{path}: expected one text a line, or a name that ends in {', '.join(_TABLES)}")
    if ending == ".conll" and task == "token_classification":
        sentences = conll.read_sentences(path, settings.text_column, settings.label_column)
        return ((sentence.place, " ".join(sentence.words)) for sentence in sentences)
    if ending == ".tsv":
        names = read_text(path).partition("\n")[0].rstrip("\r").split("\t")
        ending = ending if {settings.text_column, *_FIRST} & set(names) else ""
    if ending not in _TABLES:
        return None
    rows = read_table(path)
    names = columns_of(rows)
    if task == "question_answering":
        columns = ["question", "context"]
        if not names.keys() >= set(columns):
            return ((each.place, _joined(each.text, each.context)) for each in squad.read_questions(path))
    else:
        columns = [name for name in (settings.text_column, *_FIRST) if name in names][:1]
    if not columns:
        raise DataError(f"{rows[0].place}: the columns are {', '.join(names)}; expected one of {', '.join(_FIRST)}")
    pairs = [name for name in (settings.text_pair_column, *PAIR_COLUMNS) if name in names]
    if pairs and (settings.text_pair_column or not settings.train_file):
        columns.append(pairs[0])
    return ((row.place, _joined(*(text_of(row, name) for name in columns))) for row in rows)


def _joined(*texts: str) -> str:
    return texts[0] if len(texts) == 1 else "\t".join(text.replace("\t", " ") for text in texts)
