"""The memory of a preparation does not depend on the size of its files."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.kit import corpora
from tests.prepare.test_sources import DOCUMENTS
from tftrain.prepare import shards
from tftrain.prepare.preparation import prepare
from tftrain.tokenizer.tokenizer_model import Tokenizer

# The address space of the process is limited to what it has after its imports, and so many megabytes.
SCRIPT = """
import resource, sys
import pyarrow
from tftrain.config.prepare import PrepareConfig
from tftrain.prepare import arrow_tables, corpus_chunks, preparation
from tftrain.prepare.objectives import objective_of
from tftrain.prepare.workers import Workers

path, folder, megabytes, vocab_file = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20),) * 2)
config = PrepareConfig(
    input_files=(path,), output_dir=folder + "/out", objective="causal", tokenizer_type="bpe",
    vocab_file=(*vocab_file, None)[0], num_workers=1, eval_fraction=0, shard_mb=4,
)
if vocab_file:
    print(preparation.prepare(config).documents)
else:
    with Workers(1) as workers:
        print(corpus_chunks.read_corpus(objective_of(config), folder, [path], workers)[1])
"""


def write(path, kind, megabytes) -> int:
    """Writes different documents of so many megabytes together, and returns their number."""
    rng = np.random.default_rng(0)
    size = sum(map(len, DOCUMENTS[:2]))
    count = (megabytes << 20) // size

    def documents():
        for number in range(count):
            first, second = rng.integers(len(DOCUMENTS), size=2)
            yield f"{number} {DOCUMENTS[first]} {number} {DOCUMENTS[second]}".replace("\n", f" {number} ")

    if kind == "jsonl.zst":
        with pyarrow.CompressedOutputStream(str(path), "zstd") as file:
            for text in documents():
                file.write(json.dumps({"text": text}).encode() + b"\n")
        return count
    schema = pyarrow.schema({"text": pyarrow.string()})
    batch = []
    # One row group for all rows.
    with pyarrow.parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for text in documents():
            batch.append(text)
        writer.write_table(pyarrow.table({"text": batch}), row_group_size=count)
    return count


def run(*arguments):
    environment = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    command = ["env", *(f"{name}={value}" for name, value in environment.items()), sys.executable, "-c", SCRIPT]
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl.zst", pytest.param("parquet", marks=pytest.mark.nightly)])
def test_reading_takes_less_memory_than_the_file(tmp_path, kind):
    documents = write(tmp_path / f"a.{kind}", kind, 50)
    assert run(tmp_path / f"a.{kind}", tmp_path, 40) == documents


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_process_makes_one_tokenizer_for_all_its_shards(tmp_path, prepare_config, monkeypatch, kind):
    """What the library of byte pairs takes for one, two megabytes and more, it never gives back."""
    build, built = Tokenizer.build, []
    monkeypatch.setattr(Tokenizer, "build", lambda self: built.append(self) or build(self))
    (tmp_path / "a.txt").write_text(corpora.text(100))
    config = prepare_config(tmp_path / "out", input_files=str(tmp_path / "a.txt"), tokenizer_type=kind, shard_mb=0.01,
                            vocab_file=None, vocab_size=400, num_workers=1)  # fmt: skip
    shards._built.cache_clear()
    assert len(list(Path(prepare(config).folder).glob("train-*.tfrecord"))) > 2
    assert len(built) == 1


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_two_gigabytes_are_prepared_in_one(tmp_path, prepare_config):
    (tmp_path / "a.txt").write_text(corpora.text(200))
    small = prepare_config(tmp_path / "small", input_files=str(tmp_path / "a.txt"), objective="causal",
                           tokenizer_type="bpe", vocab_file=None, vocab_size=400)  # fmt: skip
    made = prepare(small)
    documents = write(tmp_path / "a.jsonl.zst", "jsonl.zst", 2000)
    assert run(tmp_path / "a.jsonl.zst", tmp_path, 1000, made.path(made.tokenizer_file)) == documents
