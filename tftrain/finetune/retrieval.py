"""Held-out retrieval as files have it: queries, documents, and how relevant documents are for queries.

The files are those of BEIR (Thakur et al., arXiv 2104.08663), or of trec_eval.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.files.errors import DataError
from tftrain.files.strict_json import shown
from tftrain.finetune.tables import FileNotes, column_of, number, read_table, read_text, text_of
from tftrain.finetune.text_groups import ANCHOR_COLUMNS
from tftrain.host.text import listed

_IDS = ("_id", "id", "query-id", "query_id", "qid", "corpus-id", "corpus_id", "doc_id", "docid", "pid")
_DOCUMENTS = ("text", "passage", "document", "contents")


class Ranked(NamedTuple):
    """A document, or a query, or a pair of both for a classifier."""

    place: str
    texts: tuple[str, ...]
    label: str | float | None  # a pair has one
    query: str  # id; "" for a document
    document: str  # id; "" for a query
    judged: Mapping[str, float]  # relevance of the documents that are judged for the query, by id


def read(settings: FineTuningConfig, task: str, labels: Sequence[str], notes: FileNotes) -> list[Ranked]:
    """Reads --eval_file, --eval_corpus and --eval_qrels.

    Args:
        labels: the classes of a classifier; the second one is that of relevant documents.

    Returns:
        For --task=embedding, all documents and then the queries. Documents have the order in which trec_eval ranks
        those of equal scores: descending ids. For classifiers, the pairs of queries and judged documents.

    Raises:
        DataError: a file can't be read, or no query is judged; the message names the line.
    """
    if task == "classification" and len(labels) != 2:
        raise DataError(f"--eval_corpus={settings.eval_corpus}: {len(labels)} classes; expected a model of two")
    queries = _texts(settings.eval_file, settings.text_column, ANCHOR_COLUMNS, notes)
    documents = _texts(settings.eval_corpus, settings.text_pair_column, _DOCUMENTS, notes)
    every = _judgments(settings.eval_qrels)
    judged = {query: own for query, own in every.items() if query in queries}
    found = {document for own in judged.values() for document in own}
    if not found & documents.keys():
        files = f"{settings.eval_file} with a document in {settings.eval_corpus}"
        raise DataError(f"--eval_qrels={settings.eval_qrels}: it has no query of {files}")
    counts = f"{len(judged)} queries and {len(documents)} documents, {len(found & documents.keys())} of them judged"
    notes.info(f"{settings.eval_qrels}: {counts}")
    unknown = {settings.eval_file: every.keys() - queries.keys(), settings.eval_corpus: found - documents.keys()}
    for path, ids in unknown.items():
        if ids:
            notes.warning(f"{settings.eval_qrels}: {len(ids)} ids are not in {path}: {listed(sorted(ids), 3)}")
    if task == "embedding":
        texts = [Ranked(*documents[each], None, "", each, {}) for each in sorted(documents, reverse=True)]
        return texts + [Ranked(*queries[each], None, each, "", own) for each, own in judged.items()]

    return [
        Ranked(place, text + documents[each][1], level if task == "regression" else labels[level > 0], query, each, own)
        for query, own in judged.items()
        for place, text in [queries[query]]
        for each, level in own.items()
        if each in documents
    ]


def _texts(
    path: str, column: str | None, defaults: tuple[str, ...], notes: FileNotes
) -> dict[str, tuple[str, tuple[str]]]:
    """Returns place and text of each row by its id; a title is before the text, as BEIR joins them."""
    rows, texts = read_table(path, notes=notes), {}
    column, name = column_of(rows, column, defaults), column_of(rows, None, _IDS)
    for row in rows:
        title, text, identity = row.values.get("title"), text_of(row, column), row.values.get(name)
        if isinstance(identity, bool) or not isinstance(identity, str | int) or identity == "":
            raise DataError(f"{row.place}: {name} is {shown(identity)}; expected an id")
        if (identity := str(identity)) in texts:
            raise DataError(f"{row.place}: the id {identity} occurs for the second time")
        texts[identity] = row.place, (f"{title} {text}".strip() if isinstance(title, str) else text,)
    return texts


def _judgments(path: str) -> dict[str, dict[str, float]]:
    """Returns the relevance of documents for each query, by their ids: lines of BEIR, or QUERY 0 DOCUMENT RELEVANCE."""
    judged: dict[str, dict[str, float]] = {}
    for index, line in enumerate(read_text(path).splitlines(), 1):
        fields, place = line.split("\t") if "\t" in line else line.split(), f"{path}, line {index}"
        if not fields or (index == 1 and fields[-1].strip().isalpha()):  # the names of the columns
            continue
        if len(fields) not in (3, 4):
            fault = f"{len(fields)} fields; expected QUERY, DOCUMENT and RELEVANCE, as BEIR and trec_eval have them"
            raise DataError(f"{place}: {fault}")
        query, document, value = fields[0], fields[-2], number(fields[-1], place)
        if judged.setdefault(query, {}).setdefault(document, value) != value:
            raise DataError(f"{place}: query {query} and document {document} occur with another relevance before")
    return judged
