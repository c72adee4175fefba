"""A model of Llama's kind goes through every program."""

import contextlib
import io
import json
import re

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from tests.formats.models import DATA
from tests.kit.programs import done
from tests.kit.ranks import ROOT
from tests.kit.runs import read_rows
from tftrain import predict
from tftrain.config.model_source import ModelSource
from tftrain.inference import trained_model
from tftrain.plan import __main__ as planner
from tftrain.prepare.preparation import prepare

SIZES = "--flagfile={} --num_hidden_layers=2 --hidden_size=32 --intermediate_size=48".format(
    ROOT / "configs/llama_tiny.flags"
)


def printed(program, *arguments):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert program.main(["program", *arguments]) == 0
    return text.getvalue()


@pytest.fixture(scope="module")
def run(prepare_config, tmp_path_factory):
    """The folder of a run of four steps, of which the last two are a resume, and its data."""
    folder, data = (tmp_path_factory.mktemp("llama") / name for name in ("run", "data"))
    prepare(
        prepare_config(data, objective="causal", tokenizer_type="bpe", vocab_file=str(DATA / "hf_llama/tokenizer.json"))
    )
    done(
        "started", f"{SIZES} --data_dir={data} --output_dir={folder} --micro_batch_size=2 --max_steps=2 --document_mask"
    )
    done("started", f"--output_dir={folder} --max_steps=4")
    return folder


@pytest.mark.slow
def test_it_is_resumed_with_the_flags_of_its_family(run):
    rows = read_rows(run)
    assert [row["step"] for row in rows if "lm_loss" in row][-1] == 4
    model = json.loads((run / "config.json").read_text())["config"]["model"]
    assert (model["activation"], model["bias"], model["tie_output"], model["num_key_value_heads"]) == (
        "swiglu",
        "none",
        False,
        2,
    )


@pytest.mark.slow
def test_it_is_evaluated_converted_there_and_back_predicted_and_taken_as_initial_weights(run, tmp_path):
    done("started", f"--mode=evaluate --output_dir={run}")
    done("convert", f"--from=tftrain:{run} --to=hf:{tmp_path / 'hf'}")
    done("convert", f"--from=hf:{tmp_path / 'hf'} --to=tftrain:{tmp_path / 'own'}")
    done("convert", f"--from=tftrain:{tmp_path / 'own'} --to=hf:{tmp_path / 'again'}")
    first, last = (load_file(tmp_path / name / "model.safetensors") for name in ("hf", "again"))
    assert first.keys() == last.keys() >= {"lm_head.weight", "model.layers.1.mlp.gate_proj.weight"}
    assert all(np.array_equal(first[name], last[name]) for name in first)
    of_run = printed(predict, f"--output_dir={run}", "--format=jsonl", "--max_new_tokens=3", "the words")
    converted = printed(
        predict, f"--init_checkpoint=hf:{tmp_path / 'hf'}", "--format=jsonl", "--max_new_tokens=3", "the words"
    )
    assert json.loads(of_run) == json.loads(converted)
    done(
        "started",
        f"--init_checkpoint=hf:{tmp_path / 'hf'} --synthetic_data --max_steps=1 --output_dir={tmp_path / 'tuned'}",
    )
    model = json.loads((tmp_path / "tuned/config.json").read_text())["config"]["model"]
    assert (model["model_family"], model["hidden_dropout_prob"]) == ("llama", 0.0)


@pytest.mark.slow
@pytest.mark.nightly
def test_an_export_gives_the_logits_of_the_model(run, tmp_path):
    done("export", f"--output_dir={run} --to={tmp_path / 'out'}")
    functions = tf.saved_model.load(str(tmp_path / "out/1")).signatures
    model = trained_model.load(ModelSource(output_dir=str(run))).network
    ids = tf.constant([[5, 9, 30, 7], [200, 3, 3, 8]])
    expected = model.logits(model.hidden_states({"input_ids": ids}))
    np.testing.assert_allclose(functions["next_token"](input_ids=ids)["logits"], expected, rtol=1e-5, atol=1e-6)


def test_a_plan_has_the_published_number_of_parameters():
    flags = ("--micro_batch_size=1", "--precision=bf16", "--max_seq_length=2048")
    text = printed(planner, f"--flagfile={ROOT / 'configs/llama_1b.flags'}", *flags)
    assert re.search(r"parameters +1,235,814,400\n", text)
    assert re.search(r"queries, keys, values +2048 x 2048 x 512 +96 ", text)
