"""The files and folders that the table of bad inputs names: good ones, and ones with a fault."""

import gzip
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import safetensors.numpy

from tests.finetune import files
from tests.kit import corpora, runs
from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tftrain.data import records
from tftrain.data.example import encode

MODELS = Path(__file__).parents[1] / "formats/data"
TINY = (
    *("--num_hidden_layers=1", "--hidden_size=16", "--num_attention_heads=2", "--synthetic_data", "--vocab_size=90"),
    *("--max_seq_length=16", "--max_steps=2", "--eval_every=-1"),
)


def make(folder: Path, data: str, static: str) -> dict[str, str]:
    """Writes the files; returns their paths by the names in the table.

    Args:
        folder: an empty folder.
        data, static: prepared data sets with dynamic and static masks.
    """
    (folder / "nothing").mkdir()
    (folder / "text.txt").write_text(corpora.text(20))
    (folder / "one_document.txt").write_text(corpora.text(1))
    (folder / "one_word_documents.txt").write_text("the\n\n" * 200 + corpora.text(2))
    (folder / "empty.txt").write_text("")
    (folder / "empty.csv").write_text("text,id\n")
    (folder / "text.parquet").write_text(corpora.text(20))
    (folder / "latin1.txt").write_bytes("Ein schöner Satz.\n".encode("latin-1"))
    (folder / "binary.bin").write_bytes(bytes(range(256)) * 8)
    packed = gzip.compress(corpora.text(20).encode())
    (folder / "cut.txt.gz").write_bytes(packed[: len(packed) // 2])
    (folder / "damaged.txt.gz").write_bytes(packed[:40] + b"\xff" * 40 + packed[80:])
    (folder / "twice.vocab").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\nword\n")
    _flagfiles(folder)
    _records(folder)
    _labelled(folder / "labels")
    finished = folder / "finished"
    config = flags.parse(TrainConfig, ["run", *TINY, f"--output_dir={finished}"]).resolve(1)
    runs.train(runs.with_sizes(config))
    no_weights = shutil.copytree(finished, folder / "no_weights")
    next(no_weights.glob("checkpoints/step_*/*.safetensors")).unlink()
    places = {
        "nothing": folder / "nothing",
        "out": folder / "out",
        "records": folder / "good.tfrecord",
        "finished": finished,
        "no_weights": no_weights,
        "data": data,
        "static": static,
        "dir": folder,
        "labels": folder / "labels",
        "bert": MODELS / "hf_bert",
        "encoder": MODELS / "hf_bert_model",
        "classes": MODELS / "hf_bert_classes",
        "answers": MODELS / "hf_bert_answers",
        "no_classifier": _without_classifier(folder / "no_classifier"),
        "gpt2": MODELS / "hf_gpt2",
        "megatron": MODELS / "megatron",
        "tf1": MODELS / "tf1",
        **_damaged_data(folder, Path(data)),
    }
    return {name: str(path) for name, path in places.items()}


def _without_classifier(folder: Path) -> Path:
    """Copies a model for classification without the tensors of its head."""
    shutil.copytree(MODELS / "hf_bert_classes", folder)
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("classifier")}
    safetensors.numpy.save_file(kept, folder / "model.safetensors")
    return folder


def _flagfiles(folder: Path) -> None:
    (folder / "binary.flags").write_bytes(b"--seed=1\n\x00\x01\x02\n")
    (folder / "latin1.flags").write_bytes("--output_dir=schön\n".encode("latin-1"))
    (folder / "itself.flags").write_text(f"--flagfile={folder / 'itself.flags'}\n")
    (folder / "typo.flags").write_text("--hiden_size=64\n")
    (folder / "without_dashes.flags").write_text("hidden_size=64\n")


def _records(folder: Path) -> None:
    rng = np.random.default_rng(0)
    good = [corpora.standard_example(rng)[0] for _ in range(8)]
    records.write_records(str(folder / "good.tfrecord"), good)
    (folder / "empty.tfrecord").write_bytes(b"")
    (folder / "cut.tfrecord").write_bytes(records.frame(good[0])[:-9])
    (folder / "other_features.tfrecord").write_bytes(records.frame(encode({"image": [1, 2]})))
    (folder / "no_example.tfrecord").write_bytes(records.frame(b"\xff\xff\xff"))


def _labelled(folder: Path) -> None:
    """Writes labelled files, good ones and ones with a fault."""
    files.write_vocabulary(folder)
    files.write_classes(folder / "good.tsv", 30, seed=1)
    files.write_classes(folder / "other.tsv", 30, seed=2, classes=("bad", "good"))
    files.write_squad(folder / "good.json", [("the key has a name", "q", "what", ["key"])])
    for name, text in {
        "short.tsv": "text\tlabel\na\tb\nc\n",
        "one_label.tsv": "text\tlabel\na\tb\nc\tb\n",
        "no_rows.csv": "text,label\n",
        "quote.csv": 'text,label\n"a,b\n',
        "cut.jsonl": '{"text": "a", "label": "b"}\n{"text": "c"',
        "no_label.jsonl": '{"text": "a", "label": "b"}\n{"text": "c"}\n',
        "words.jsonl": '{"text": "a", "label": "high"}\n',
        "x.txt": "text\tlabel\na\tb\n",
        "pairs.tsv": "text\ttext_pair\n" + "a key\ta name\n" * 5,
        "triples.jsonl": '{"query": "a key", "pos": "a name", "neg": ["a list"]}\n' * 5,
        "no_partner.tsv": "text\ttext_pair\na key\ta name\na key\t\n",
        "same_negative.tsv": "text\ttext_pair\tnegative\na key\ta name\ta name\n",
        "train.tsv": "sentence\tclass\na\t0\n",
        "no_tags.conll": "EU B-ORG\nalone\n",
        "empty.conll": "\n\n",
        "list.json": "[]",
        "moved.json": (folder / "good.json").read_text().replace('"answer_start": 4', '"answer_start": 9'),
    }.items():
        (folder / name).write_text(text)
    (folder / "latin1.tsv").write_bytes("text\tlabel\nschön\tb\n".encode("latin-1"))


def _damaged_data(folder: Path, data: Path) -> dict[str, Path]:
    """Returns copies of a data set, each with one fault, by the name of the fault."""
    names = ("no_json", "other_format", "no_shard", "short_shard", "other_vocabulary", "no_vocabulary", "relearned")
    copies = {name: Path(shutil.copytree(data, folder / name)) for name in names}
    (copies["no_json"] / "manifest.json").write_text("{")
    manifest = json.loads((data / "manifest.json").read_text())
    (copies["other_format"] / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    shard = manifest["splits"]["train"][0]["file"]
    (copies["no_shard"] / shard).unlink()
    (copies["short_shard"] / shard).write_bytes((data / shard).read_bytes()[:-100])
    (copies["other_vocabulary"] / "vocab.txt").write_text((data / "vocab.txt").read_text() + "another\n")
    (copies["no_vocabulary"] / "vocab.txt").unlink()
    words = (data / "vocab.txt").read_text() + "another\n"
    (copies["relearned"] / "vocab.txt").write_text(words)
    changed = {"vocab_size": manifest["vocab_size"] + 1, "vocab_sha256": hashlib.sha256(words.encode()).hexdigest()}
    (copies["relearned"] / "manifest.json").write_text(json.dumps(manifest | changed))
    return copies
