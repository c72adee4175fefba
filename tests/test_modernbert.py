"""A model of ModernBERT's kind goes through every program."""

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from tests.finetune import files
from tests.kit.programs import done
from tests.kit.ranks import ROOT
from tests.kit.runs import read_rows
from tftrain.config.model_source import ModelSource
from tftrain.data.example import decode
from tftrain.data.manifest import read_manifest
from tftrain.data.records import RecordSet
from tftrain.inference import trained_model
from tftrain.prepare.preparation import prepare

SIZES = "--flagfile={} --num_hidden_layers=3 --hidden_size=32 --intermediate_size=48 --local_attention=8".format(
    ROOT / "configs/modernbert_tiny.flags"
)


@pytest.fixture(scope="module")
def data(prepare_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("modernbert") / "data"
    bpe = {"tokenizer_type": "bpe", "vocab_file": None, "vocab_size": 400}
    prepare(prepare_config(folder, next_sentence=False, packing="greedy", **bpe))
    return folder


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """The folder of a run of four steps, of which the last two are a resume."""
    folder = tmp_path_factory.mktemp("modernbert") / "run"
    done("started", f"{SIZES} --data_dir={data} --output_dir={folder} --micro_batch_size=2 --max_steps=2")
    done("started", f"--output_dir={folder} --max_steps=4")
    return folder


def test_examples_have_one_text_and_every_token_of_the_documents(data):
    manifest = read_manifest(str(data))
    assert (manifest.next_sentence, manifest.tokenizer_type) == (False, "bpe")
    assert manifest.tokens_in_examples + sum(manifest.tokens_dropped.values()) == manifest.tokens_read
    tokens = (data / manifest.vocab_file).read_text().split("\n")
    cls, sep = tokens.index("[CLS]"), tokens.index("[SEP]")
    files_of_split = [str(data / shard.file) for shard in manifest.splits["train"]]
    records = RecordSet(files_of_split)
    for number in range(len(records)):
        features = decode(records.read(number), "here")
        ends = np.cumsum(features["sequence_lengths"])
        ids, begins = np.array(features["input_ids"]), ends - features["sequence_lengths"]
        assert (ids[begins] == cls).all()
        assert (ids[ends - 1] == sep).all()
        assert np.isin(ids, [cls, sep]).sum() == 2 * len(ends)
        assert features["second_segment_start"] == features["sequence_lengths"]


@pytest.mark.slow
def test_the_loss_is_that_of_masked_words_alone(run):
    rows = read_rows(run)
    last = [row for row in rows if "mlm_loss" in row][-1]
    assert last["step"] == 4
    assert last["loss"] == last["mlm_loss"]
    assert not any("nsp_loss" in row for row in rows)


@pytest.mark.slow
def test_it_is_evaluated_predicted_and_converted_there_and_back(run, tmp_path):
    done("started", f"--mode=evaluate --output_dir={run}")
    done("predict", f"--output_dir={run} [MASK]")
    done("convert", f"--from=tftrain:{run} --to=hf:{tmp_path / 'hf'}")
    done("convert", f"--from=hf:{tmp_path / 'hf'} --to=tftrain:{tmp_path / 'own'}")
    done("convert", f"--from=tftrain:{tmp_path / 'own'} --to=hf:{tmp_path / 'again'}")
    first, last = (load_file(tmp_path / name / "model.safetensors") for name in ("hf", "again"))
    assert first.keys() == last.keys() >= {"head.dense.weight", "model.layers.2.attn.Wqkv.weight"}
    assert all(np.array_equal(first[name], last[name]) for name in first)


@pytest.mark.nightly  # tests/tasks and tests/test_every_lever.py have another family.
@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("classification", "the file is good"),
        ("token_classification", "the file is good"),
        ("question_answering", "What is good?\tThe file is good."),
        ("embedding", "the file is good"),
    ],
)
def test_it_is_fine_tuned_and_predicts(run, tmp_path, task, text):
    file = labelled(tmp_path, task)
    folder = tmp_path / "run"
    done(
        "started",
        f"--task={task} --train_file={file} --eval_file={file} --init_checkpoint=tftrain:{run} --output_dir={folder} "
        "--max_steps=2 --micro_batch_size=2 --max_seq_length=32 --eval_every=-1",
    )
    done("started", f"--mode=evaluate --output_dir={folder}")
    done("convert", f"--from=tftrain:{folder} --to=hf:{tmp_path / 'hf'}")
    texts = tmp_path / "texts.txt"
    texts.write_text(text + "\n")
    done("predict", f"--output_dir={folder} --input_file={texts}")
    vectors = "--embedding=mean " if task == "embedding" else ""
    done("predict", f"--init_checkpoint=hf:{tmp_path / 'hf'} {vectors}--input_file={texts}")
    done("export", f"--output_dir={folder} --to={tmp_path / 'out'}")


def labelled(folder, task):
    """Writes labelled examples of a task."""
    if task == "token_classification":
        (folder / "words.conll").write_text("the O\nfile B-X\nis O\ngood O\n\nbad O\nlist B-X\n" * 4)
        return folder / "words.conll"
    if task == "question_answering":
        context = "The file is good. The list is bad."
        return files.write_squad(
            folder / "squad.json", [(context, str(n), "What is good?", ["file"]) for n in range(6)]
        )
    if task == "embedding":
        (folder / "pairs.tsv").write_text("text\ttext_pair\n" + "a good file\ta file\nthe bad list\ta list\n" * 4)
        return folder / "pairs.tsv"
    return files.write_classes(folder / "classes.tsv", 12, 1)


@pytest.mark.nightly
@pytest.mark.slow
def test_an_export_gives_the_logits_of_the_model(run, tmp_path):
    done("export", f"--output_dir={run} --to={tmp_path / 'out'}")
    functions = tf.saved_model.load(str(tmp_path / "out/1")).signatures
    network = trained_model.load(ModelSource(output_dir=str(run))).network
    ids, mask = tf.constant([[2, 9, 30, 3], [2, 30, 3, 0]]), tf.constant([[1, 1, 1, 1], [1, 1, 1, 0]])
    hidden, _ = network.encode({"input_ids": ids, "input_mask": mask})
    found = functions["encode"](input_ids=ids, input_mask=mask)
    np.testing.assert_allclose(found["hidden_states"], hidden, rtol=1e-5, atol=1e-6)
