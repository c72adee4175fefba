"""Files that Git LFS has not fetched are named as what they are, by every reader of models, tables and tokenizers."""

import shutil
from pathlib import Path

import pytest

from tests.prepare.test_data_names import POINTER
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.source import open_file
from tftrain.files.errors import DataError, FormatError
from tftrain.finetune.conll import read_sentences
from tftrain.finetune.squad import read_questions
from tftrain.finetune.tables import read_table
from tftrain.formats.safetensors_file import SafetensorsFile
from tftrain.formats.tf_checkpoint import TfCheckpoint
from tftrain.formats.torch_file import TorchFile
from tftrain.tokenizer.vocabulary import read_file


def read_checkpoint(path):
    for ending in ("index", "data-00000-of-00001"):
        shutil.copy(path, f"{path}.{ending}")
    TfCheckpoint(path)


READERS = {
    "model.safetensors": SafetensorsFile,
    "pytorch_model.bin": TorchFile,
    "bert_model.ckpt": read_checkpoint,
    "shard.bin": open_file,
    "vocab.txt": lambda path: read_file(str(path), "expected a vocabulary"),
    "a.conll": lambda path: read_sentences(str(path)),
    "a.csv": lambda path: read_table(str(path)),
    "a.jsonl": lambda path: read_table(str(path)),
    "a.json": lambda path: read_questions(str(path)),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pointer_is_named(tmp_path, name):
    path = Path(tmp_path, name)
    path.write_bytes(POINTER)
    with pytest.raises((FormatError, CheckpointError, DataError), match=f"{name}: a Git LFS pointer, .*git lfs pull"):
        READERS[name](path)
