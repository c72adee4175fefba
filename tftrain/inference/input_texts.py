"""The texts of a file for `tftrain.predict`: one a line, or those of a labelled file without the labels."""

import sys
from collections.abc import Iterator
from pathlib import Path

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.predict import STANDARD_INPUT
from tftrain.files.errors import DataError
from tftrain.finetune import conll, squad, tables
from tftrain.finetune.text_groups import ANCHOR_COLUMNS
from tftrain.host.text import reason

_OTHERS = (".xlsx",)
_FIRST = (*ANCHOR_COLUMNS, "prompt", "instruction")


def read(path: str, task: str, settings: FineTuningConfig | None) -> Iterator[tuple[str, str]]:
    """Yields places and texts of a table, with a tab between the texts of a pair, or of each line of another file.

    A TSV file is a table if its first line names the column of a text. The columns are those of the model's run. The
    path - is standard input. Raises a DataError if the file can't be read, or has no such column; the message names the
    line.
    """
    texts = None if path == STANDARD_INPUT else _labelled(path, task, settings)
    yield from _lines(path) if texts is None else texts


def _lines(path: str) -> Iterator[tuple[str, str]]:
    is_input = path == STANDARD_INPUT
    try:
        with open(sys.stdin.fileno() if is_input else path, "rb", closefd=not is_input) as file:
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8" if number > 1 else "utf-8-sig").rstrip("\r\n")
                yield f"{'standard input' if is_input else path}: line {number}", text
    except UnicodeDecodeError as error:
        fault = f"line {number}, byte {error.start} of it: not UTF-8; convert the file, for instance with"
        raise DataError(f"{path}: {fault} iconv -t UTF-8") from error
    except OSError as error:
        raise DataError(f"{path}: {reason(error)}") from error


def _labelled(path: str, task: str, settings: FineTuningConfig | None) -> Iterator[tuple[str, str]] | None:
    """Returns what `read` yields of a table; None if the file has a text a line."""
    settings = settings or FineTuningConfig()
    ending = tables.ARROW[0] if tables.is_arrow(path) else Path(path).suffix.lower()
    if ending in _OTHERS:
        raise DataError(f"{path}: expected one text a line, or a name that ends in {', '.join(tables.FORMATS)}")
    if ending == ".conll" and task == "token_classification":
        sentences = conll.read_sentences(path, settings.text_column, settings.label_column)
        return ((sentence.place, " ".join(sentence.words)) for sentence in sentences)
    if ending == ".tsv":
        names = tables.read_text(path).partition("\n")[0].rstrip("\r").split("\t")
        ending = ending if {settings.text_column, *_FIRST} & set(names) else ""
    if ending not in tables.FORMATS:
        return None
    rows = tables.read_table(path)
    names = tables.columns_of(rows)
    if task == "question_answering":
        columns = ["question", "context"]
        if not names.keys() >= set(columns):
            return ((each.place, _joined(each.text, each.context)) for each in squad.read_questions(path))
    else:
        columns = [tables.column_of(rows, settings.text_column, _FIRST)]
    pairs = [name for name in (settings.text_pair_column, *tables.PAIR_COLUMNS) if name in names]
    if pairs and (settings.text_pair_column or not settings.train_file):
        columns.append(pairs[0])
    return ((row.place, _joined(*(tables.text_of(row, name) for name in columns))) for row in rows)


def _joined(*texts: str) -> str:
    return texts[0] if len(texts) == 1 else "\t".join(text.replace("\t", " ") for text in texts)
