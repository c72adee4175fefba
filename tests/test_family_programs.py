"""A model of each family goes through every program."""

import contextlib
import functools
import io
import itertools
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from tests.finetune import files
from tests.formats.models import DATA
from tests.kit.data_sets import CAUSAL
from tests.kit.programs import done
from tests.kit.ranks import ROOT
from tests.kit.runs import read_rows
from tests.tokenizer import libraries
from tftrain import predict
from tftrain.config.model_source import ModelSource
from tftrain.data.example import decode
from tftrain.data.records import RecordSet
from tftrain.inference import trained_model
from tftrain.plan import __main__ as planner
from tftrain.prepare.preparation import prepare

FAMILIES = {
    "bert": SimpleNamespace(
        sizes="--num_hidden_layers=2 --num_attention_heads=4",
        prepares={},
        model={"next_sentence": True, "gelu_form": "tanh"},
        tensors={"cls.predictions.bias", "bert.encoder.layer.1.output.dense.weight"},
        predicts="[MASK]",
    ),
    "gpt": SimpleNamespace(
        sizes="--model_family=gpt --num_hidden_layers=2 --num_attention_heads=4",
        prepares=CAUSAL,
        model={"position_embedding": "learned"},
        tensors={"transformer.wpe.weight", "transformer.h.1.mlp.c_proj.weight"},
        predicts="--max_new_tokens=3 words",
    ),
    "llama": SimpleNamespace(
        sizes=f"--flagfile={ROOT}/configs/llama_tiny.flags --num_hidden_layers=2 --document_mask",
        prepares={"objective": "causal", "tokenizer_type": "bpe", "vocab_file": str(DATA / "hf_llama/tokenizer.json")},
        model={"activation": "swiglu", "bias": "none", "tie_output": False, "num_key_value_heads": 2},
        tensors={"lm_head.weight", "model.layers.1.mlp.gate_proj.weight"},
        predicts="--max_new_tokens=3 words",
    ),
    "modernbert": SimpleNamespace(
        sizes=f"--flagfile={ROOT}/configs/modernbert_tiny.flags --num_hidden_layers=3 --local_attention=8",
        prepares={"next_sentence": False, "packing": "greedy", "tokenizer_type": "bpe", "vocab_file": None}
        | {"vocab_size": 400},
        model={"next_sentence": False, "local_attention": 8},
        tensors={"head.dense.weight", "model.layers.2.attn.Wqkv.weight"},
        predicts="[MASK]",
    ),
    "roberta": SimpleNamespace(
        sizes="--model_family=roberta --num_hidden_layers=2 --num_attention_heads=4",
        prepares={"next_sentence": False, "packing": "greedy", "tokenizer_type": "bpe"}
        | {"vocab_file": str(DATA / "hf_roberta/tokenizer.json")},
        model={"next_sentence": False, "type_vocab_size": 1, "gelu_form": "erf", "first_position": 2},
        tensors={"lm_head.dense.weight", "roberta.embeddings.token_type_embeddings.weight"},
        predicts="<mask>",
    ),
    "distilbert": SimpleNamespace(
        sizes="--model_family=distilbert --num_hidden_layers=2 --num_attention_heads=4",
        prepares={"next_sentence": False, "masking": "static"},
        model={"next_sentence": False, "gelu_form": "erf"},
        tensors={"vocab_transform.weight", "distilbert.transformer.layer.1.ffn.lin2.bias"},
        predicts="[MASK]",
    ),
}  # fmt: skip
# Tokenizers of the library's format, in place of a byte-level BPE.
FAMILIES["modernbert_unigram"] = SimpleNamespace(**vars(FAMILIES["modernbert"]))
FAMILIES["modernbert_unigram"].prepares = FAMILIES["modernbert"].prepares | {"tokenizer_type": "unigram"}
FAMILIES["llama_pipeline"] = SimpleNamespace(**vars(FAMILIES["llama"]), library=libraries.llama)
FAMILIES["llama_pipeline"].prepares = {"objective": "causal", "tokenizer_type": "pipeline"}  # fmt: skip


def printed(program, *arguments):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert program.main(["program", *arguments]) == 0
    return text.getvalue()


@pytest.fixture(scope="module")
def made(prepare_config, tmp_path_factory):
    """Returns a family with the folders of its data and of a run of four steps, of which the last two are a resume."""

    @functools.cache
    def make(name):
        family, folder = FAMILIES[name], tmp_path_factory.mktemp(name)
        run, data = folder / "run", folder / "data"
        prepares = family.prepares
        if "library" in vars(family):
            (folder / "tokenizer.json").write_bytes(family.library())
            prepares = prepares | {"vocab_file": str(folder / "tokenizer.json")}
        prepare(prepare_config(data, **prepares))
        sizes = f"{family.sizes} --hidden_size=32 --intermediate_size=48 --eval_every=-1"
        done("run", f"{sizes} --data_dir={data} --output_dir={run} --micro_batch_size=2 --max_steps=2")
        done("run", f"--output_dir={run} --max_steps=4")
        return SimpleNamespace(**vars(family), name=name.partition("_")[0], run=run, data=data)

    return make


# Other tests of the daily suite have the first two; the next two go through the programs with another tokenizer, and
# RoBERTa trains as DistilBERT does, whose files are those of tests/formats.
NIGHTLY = ("bert", "gpt", "llama", "modernbert", "distilbert")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.nightly] * (name in NIGHTLY)) for name in FAMILIES],
)
def family(request, made):
    return made(request.param)


@pytest.mark.slow
def test_it_is_resumed_with_the_flags_of_its_family(family):
    rows = [row for row in read_rows(family.run) if "loss" in row]
    assert rows[-1]["step"] == 4
    losses = [name for name in rows[-1] if name.endswith("lm_loss")]
    assert [rows[-1][name] == rows[-1]["loss"] for name in losses] == [not family.model.get("next_sentence")]
    model = json.loads((family.run / "config.json").read_text())["config"]["model"]
    assert {name: model[name] for name in family.model} == family.model


@pytest.mark.slow
def test_it_is_planned_evaluated_converted_predicted_and_taken_as_initial_weights(family, tmp_path):
    sizes = family.sizes.removesuffix("--document_mask")  # It needs data.
    done("plan", f"{sizes} --vocab_size=400 --max_seq_length=32 --micro_batch_size=2")
    done("run", f"--mode=evaluate --output_dir={family.run}")
    done("convert", f"--from=tftrain:{family.run} --to=hf:{tmp_path / 'hf'}")
    assert load_file(tmp_path / "hf/model.safetensors").keys() >= family.tensors
    text = ("--format=jsonl", *family.predicts.split())
    of_run, converted = (
        json.loads(printed(predict, model, *text))
        for model in (f"--output_dir={family.run}", f"--init_checkpoint=hf:{tmp_path / 'hf'}")
    )
    assert of_run == converted
    given = f"--init_checkpoint=hf:{tmp_path / 'hf'} --synthetic_data --max_steps=1 --eval_every=-1"
    done("run", f"{given} --output_dir={tmp_path / 'tuned'}")
    model = json.loads((tmp_path / "tuned/config.json").read_text())["config"]["model"]
    dropout = 0.0 if family.name in ("llama", "modernbert") else 0.1
    assert (model["model_family"], model["hidden_dropout_prob"]) == (family.name, dropout)


@pytest.mark.slow
@pytest.mark.nightly
def test_an_export_gives_the_numbers_of_the_model(family, tmp_path):
    done("export", f"--output_dir={family.run} --to={tmp_path / 'out'}")
    functions = tf.saved_model.load(str(tmp_path / "out/1")).signatures
    model = trained_model.load(ModelSource(output_dir=str(family.run)))
    network = model.network
    ids, mask = tf.constant([[5, 9, 30, 7], [40, 3, 3, 8]]), tf.constant([[1, 1, 1, 1], [1, 1, 1, 0]])
    if model.config.is_causal:
        expected = network.logits(network.hidden_states({"input_ids": ids}))
        found = functions["next_token"](input_ids=ids)["logits"]
    else:
        expected, _ = network.encode(trained_model.encoder_batch(ids, mask))
        inputs = {"input_ids": ids, "input_mask": mask, "token_type_ids": tf.zeros_like(ids)}
        names = functions["encode"].structured_input_signature[1]
        found = functions["encode"](**{name: inputs[name] for name in names})["hidden_states"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_plan_has_the_published_number_of_parameters():
    flags = ("--micro_batch_size=1", "--precision=bf16", "--max_seq_length=2048")
    text = printed(planner, f"--flagfile={ROOT / 'configs/llama_1b.flags'}", *flags)
    assert re.search(r"parameters +1,235,814,400\n", text)
    assert re.search(r"queries, keys, values +2048 x 2048 x 512 +96 ", text)


def test_examples_have_one_text_and_every_token_of_the_documents(prepare_config, tmp_path):
    manifest, data = prepare(prepare_config(tmp_path, **FAMILIES["modernbert"].prepares)), tmp_path
    assert (manifest.next_sentence, manifest.tokenizer_type) == (False, "bpe")
    assert manifest.tokens_in_examples + sum(manifest.tokens_dropped.values()) == manifest.tokens_read
    tokens = (data / manifest.vocab_file).read_text().split("\n")
    cls, sep = tokens.index("[CLS]"), tokens.index("[SEP]")
    records = RecordSet([str(data / shard.file) for shard in manifest.splits["train"]])
    for number in range(len(records)):
        features = decode(records.read(number), "here")
        ends = np.cumsum(features["sequence_lengths"])
        ids, begins = np.array(features["input_ids"]), ends - features["sequence_lengths"]
        assert (ids[begins] == cls).all()
        assert (ids[ends - 1] == sep).all()
        assert np.isin(ids, [cls, sep]).sum() == 2 * len(ends)
        assert features["second_segment_start"] == features["sequence_lengths"]


TEXTS = {
    "classification": "the file is good",
    "token_classification": "the file is good",
    "question_answering": "What is good?\tThe file is good.",
    "embedding": "the file is good",
}
ENCODERS = ("modernbert", "roberta", "distilbert", "bert")
DECODERS = [("completion", "gpt"), ("completion", "llama"), ("embedding", "llama"), ("embedding", "llama_pipeline")]
TASKS = [*itertools.product(TEXTS, ENCODERS), *DECODERS]


@pytest.mark.nightly  # tests/tasks has a family of each kind.
@pytest.mark.parametrize(("task", "name"), TASKS)
def test_it_is_fine_tuned_and_predicts(made, tmp_path, task, name):
    family = made(name)
    file, folder = labelled(tmp_path, task), tmp_path / "run"
    done(
        "run",
        f"--task={task} --train_file={file} --eval_file={file} --init_checkpoint=tftrain:{family.run} "
        f"--output_dir={folder} --max_steps=2 --micro_batch_size=2 --max_seq_length=32 --eval_every=-1",
    )
    done("run", f"--mode=evaluate --output_dir={folder}")
    done("convert", f"--from=tftrain:{folder} --to=hf:{tmp_path / 'hf'}")
    texts = tmp_path / "texts.txt"
    texts.write_text(TEXTS.get(task, "the file") + "\n")
    done("predict", f"--output_dir={folder} --input_file={texts}")
    done("predict", f"--init_checkpoint=hf:{tmp_path / 'hf'} --input_file={texts}")
    done("export", f"--output_dir={folder} --to={tmp_path / 'out'}")


def labelled(folder, task):
    """Writes labelled examples of a task."""
    if task == "completion":
        return files.write_completions(folder / "rows.jsonl", 12, 1)
    if task == "classification":
        return files.write_classes(folder / "classes.tsv", 12, 1)
    if task == "question_answering":
        context = "The file is good. The list is bad."
        return files.write_squad(
            folder / "squad.json", [(context, str(n), "What is good?", ["file"]) for n in range(6)]
        )
    path, text = {
        "token_classification": (folder / "words.conll", "the O\nfile B-X\nis O\ngood O\n\nbad O\nlist B-X\n" * 4),
        "embedding": (folder / "pairs.tsv", "text\ttext_pair\n" + "a good file\ta file\nthe bad list\ta list\n" * 4),
    }[task]
    path.write_text(text)
    return path
