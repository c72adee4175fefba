"""Table `prepare`: text to sequences by `tftrain.prepare`, beside a plain script of `datasets` and `tokenizers`.

Both learn a tokenizer from the documentation inside all installed packages, tokenize it and write sequences of one
length, in turns. `tftrain.prepare` also drops duplicate paragraphs, holds documents out, and cuts out of them what
training has too. The script, `plain_prepare`, needs the package datasets.
"""

import contextlib
import importlib.metadata
import itertools
import json
import logging
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tftrain.bench import host
from tftrain.bench.config import BenchConfig
from tftrain.bench.ranks import watched
from tftrain.bench.table import Outcome, Record, Row, Say, Table, columns, in_turns, rows_of
from tftrain.data.manifest import read_manifest
from tftrain.files.errors import DataError
from tftrain.page.bars import Panel, Series
from tftrain.prepare import builtin_corpus

VOCAB_SIZE, LENGTH = 30522, 512
LIMIT_SECONDS = 3600
TOKENIZERS, FORMATS, WORKERS = ("bpe", "wordpiece"), ("txt", "jsonl.zst", "parquet"), (1, 2)
PROGRAMS = ("tftrain", "datasets")


def measure(group: list[Row], config: BenchConfig, say: Say) -> Iterator[Outcome]:
    """Runs each row `--rounds` times in turns, and yields the medians."""
    files = corpus(Path(config.output_dir) / "prepare_corpus")

    def run(row: Row) -> Record:
        say(f"{row.name}; {host.load()}")
        return once(row, files[row.settings["format"]])

    errors: dict[str, str] = {}
    megabytes = files["txt"].stat().st_size / 1e6
    answers = in_turns(group, config.rounds, run, errors)
    for row in group:
        if row.name in errors:
            yield Outcome(row.name, [], errors[row.name])
            continue
        runs = answers[row.name]
        seconds, tokens = statistics.median(each["seconds"] for each in runs), runs[0]["tokens"]
        rates = {"seconds": seconds, "mb_per_s": megabytes / seconds, "ktokens_per_s": tokens / seconds / 1e3}
        memory = statistics.median(each["pss_gb"] for each in runs)
        yield Outcome(row.name, [{**row.settings, **rates, "million_tokens": tokens / 1e6, "pss_gb": memory}])


def corpus(folder: Path) -> dict[str, Path]:
    """Returns the documentation inside all installed packages by format; writes it once into a folder."""
    import pyarrow
    import pyarrow.parquet

    files = {ending: folder / f"corpus.{ending}" for ending in FORMATS}
    if files["parquet"].exists():  # The last one.
        return files
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    logging.getLogger(builtin_corpus.__name__).setLevel(logging.WARNING)
    for name in sorted({distribution.metadata["Name"] for distribution in importlib.metadata.distributions()}):
        with contextlib.suppress(DataError):  # Not all of it is there.
            paths += builtin_corpus.list_files([name])
    documents = builtin_corpus.deduplicate(builtin_corpus.extract_all(paths), math.inf)
    texts = ["\n".join(document) for document in documents]
    files["txt"].write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    with pyarrow.CompressedOutputStream(str(files["jsonl.zst"]), "zstd") as stream:
        for text in texts:
            stream.write(json.dumps({"text": text}).encode() + b"\n")
    table = pyarrow.table({"text": texts})
    unfinished = folder / "unfinished"
    pyarrow.parquet.write_table(table, unfinished, row_group_size=-(-len(texts) // 16))
    unfinished.rename(files["parquet"])
    return files


def once(row: Row, file: Path) -> Record:
    """Runs a program on a file; returns its seconds, the tokens in sequences, and the memory of its processes."""
    tokenizer, workers, _, program = row.settings.values()
    with tempfile.TemporaryDirectory(prefix="tftrain_bench_") as folder:
        ours = [
            *(sys.executable, "-m", "tftrain.prepare", "--objective=causal", f"--input_files={file}"),
            *(f"--tokenizer_type={tokenizer}", f"--vocab_size={VOCAB_SIZE}", f"--max_seq_length={LENGTH}"),
            *(f"--num_workers={workers}", f"--output_dir={folder}/out"),
        ]
        settings = [tokenizer, str(VOCAB_SIZE), str(LENGTH), str(workers), str(file), f"{folder}/out"]
        plain = [sys.executable, "-m", "tftrain.bench.plain_prepare", *settings]
        command = ours if program == "tftrain" else plain
        lines, seconds, memory = watched(command, {"HF_HOME": folder}, LIMIT_SECONDS, whole_tree=True)
        tokens = read_manifest(f"{folder}/out").tokens_in_examples if program == "tftrain" else int(lines[-1])
    return {"seconds": seconds, "tokens": tokens, "pss_gb": memory.total / 1e9}


PREPARE = Table(
    "prepare",
    "text to tokens and sequences by tftrain.prepare, beside datasets and tokenizers",
    columns("tokenizer workers:0 format program seconds:1 mb_per_s:2 ktokens_per_s:0 million_tokens:2 pss_gb:2"),
    rows_of("tokenizer workers format program", itertools.product(TOKENIZERS, WORKERS, FORMATS, PROGRAMS), 3),
    measure,
    panels=(Panel("MB of text a second", (Series("mb_per_s"),), ".2f", " MB/s"),),
    chart_note="A bar is the median of the runs, and its label is the same number.",
    labels=("tokenizer", "workers", "format", "program"),
)
