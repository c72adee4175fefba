"""`--init_checkpoint`: the model of another library goes on training here, in any layout of ranks."""

import dataclasses

import numpy as np
import pytest

from tests.formats.models import DATA, outputs
from tests.formats.test_sentence_transformers import written
from tests.kit import runs
from tests.kit.ranks import run_ranks
from tftrain import convert
from tftrain.cli import flags
from tftrain.config.convert import Place
from tftrain.config.train import TrainConfig
from tftrain.files.errors import FormatError
from tftrain.formats.registry import open_weights
from tftrain.formats.weights import heads_of
from tftrain.inputs import initial_weights
from tftrain.inputs.inputs import Inputs
from tftrain.parallel.mesh import Mesh
from tftrain.state.new_run import new_run

BERT, GPT = f"hf:{DATA / 'hf_bert'}", f"hf:{DATA / 'hf_gpt2'}"
TRAIN = ("--synthetic_data", "--max_seq_length=16", "--micro_batch_size=4", "--learning_rate=1e-3", "--optimizer=adamw")


def completed(*args):
    config, problems, given = flags.read(TrainConfig, ["tftrain.run", *TRAIN, "--output_dir=x", *args])
    assert not problems
    return initial_weights.with_model_of_weights(config, given)[:2]


def opened(config):
    return Inputs.open(config).open_weights(config.model, config.run.init_missing)


def test_the_flags_of_the_model_follow_from_the_weights():
    config, problems = completed(f"--init_checkpoint={BERT}", "--hidden_dropout_prob=0.3", "--ln_impl=reference")
    assert not problems
    model = config.model
    assert (model.hidden_dropout_prob, model.ln_impl) == (0.3, "reference")  # These say how to train.
    assert (model.hidden_size, model.num_hidden_layers, model.num_attention_heads) == (24, 2, 4)
    assert (model.vocab_size, model.feed_forward_size, model.max_position_embeddings) == (35, 40, 20)
    assert (model.gelu_form, model.layer_norm_epsilon) == ("erf", 1e-12)
    config, problems = completed(f"--init_checkpoint={GPT}")
    assert not problems
    assert (config.model.model_family, config.model.gelu_form, config.model.layer_norm_epsilon) == ("gpt", "tanh", 1e-5)


def test_a_new_classifier_of_a_pretrained_model_pools_as_the_command_says():
    task = ("--task=classification", "--classifier_pooling=mean")
    config, problems = completed(f"--init_checkpoint=hf:{DATA / 'hf_modernbert'}", *task)
    assert (problems, config.model.classifier_pooling) == ([], "mean")
    _, problems = completed(f"--init_checkpoint=hf:{DATA / 'hf_modernbert_classes'}", *task)
    assert [problem.flag for problem in problems] == ["classifier_pooling"]


@pytest.mark.parametrize("fixture", ["hf_roberta", "hf_roberta_model", "hf_xlm_roberta", "hf_distilbert"])
def test_a_classifier_with_a_dense_layer_of_its_own_is_new_without_a_flag(fixture):
    labels = ("--labels=a", "--labels=b")
    config, problems = completed(f"--init_checkpoint=hf:{DATA / fixture}", "--task=classification", *labels)
    assert (problems, heads_of(config.model)) == ([], ("classifier",))
    assert "classifier" not in opened(config).parts


def test_vectors_are_those_of_the_weights_unless_the_command_says_more(tmp_path):
    folder = written(tmp_path / "model", "hf_bert_model", pooling="cls", embedding_dense=10, text_prompt="q: ")
    given = f"--init_checkpoint=hf:{folder}"
    model, problems = completed(given)[0].model, completed(given)[1]
    flags = ("task", "pooling", "embedding_dense", "text_prompt", "normalize_embeddings")
    assert ([getattr(model, name) for name in flags], problems) == (["embedding", "cls", 10, "q: ", True], [])
    assert "projection" in opened(completed(given)[0]).parts
    config, problems = completed(given, "--pooling=last", "--text_prompt=", "--embedding_dense=7")
    assert ([getattr(config.model, name) for name in flags], problems) == (["embedding", "last", 7, "", True], [])
    assert "projection" not in opened(config).parts
    evaluated = dataclasses.replace(config, run=dataclasses.replace(config.run, mode="evaluate"))
    with pytest.raises(FormatError, match=r"it lacks output heads \(projection\)"):
        opened(evaluated)
    config, problems = completed(given, "--task=classification", "--labels=a", "--labels=b")
    assert (problems, config.model.pooling, config.model.embedding_dense) == ([], "auto", 0)
    for fixture in ("hf_gpt2", "hf_qwen3"):
        config, problems = completed(f"--init_checkpoint=hf:{DATA / fixture}", "--task=embedding")
        assert (problems, config.model.text_pooling, heads_of(config.model)) == ([], "last", ())
        opened(config)


def test_weights_go_on_without_the_next_sentence():
    config, problems = completed(f"--init_checkpoint=hf:{DATA / 'hf_bert_masked_lm'}", "--next_sentence=false")
    assert (problems, config.model.next_sentence) == ([], False)
    assert "masked_lm" in opened(config).parts


CONTRADICTING = ("--hidden_size=48", "--gelu_form=tanh", "--vocab_size=64", "--model_family=gpt")


@pytest.mark.parametrize(
    ("flag", "more", "message"),
    [
        *((flag, [f"--init_checkpoint={BERT}"], BERT) for flag in CONTRADICTING),
        ("--init_checkpoint=hf:/nowhere", [], "no such folder"),
        ("--init_checkpoint=bert", [], "expected FORMAT:PATH"),
        (f"--init_checkpoint=tf1:{DATA / 'hf_bert'}", [], "bert_config.json"),
    ],
)
def test_weights_that_are_not_there_or_contradict_a_flag_are_refused(flag, more, message):
    _, problems = completed(flag, *more)
    assert [problem.flag for problem in problems] == [flag[2:].partition("=")[0]]
    assert message in problems[0].expected


def test_data_with_another_vocabulary_is_refused(prepared):
    config, _ = completed(f"--init_checkpoint={BERT}", f"--data_dir={prepared}", "--synthetic_data=false")
    (expected,) = (each.expected for each in Inputs.open(config).problems() if each.flag == "init_checkpoint")
    assert "token 1 is '[unused0]', there '[UNK]'; prepare the text with --vocab_file" in expected


def test_missing_heads_are_refused_unless_they_may_be_random():
    value = f"--init_checkpoint=hf:{DATA / 'hf_bert_model'}"
    with pytest.raises(FormatError, match="lacks output heads"):
        opened(completed(value)[0])
    assert opened(completed(value, "--init_missing")[0]).missing == ("masked_lm", "next_sentence")


def classifier_of(*labels, task="classification", mode="train"):
    given = TrainConfig()
    model = dataclasses.replace(given.model, task=task, labels=labels)
    settings = dataclasses.replace(given.run, init_checkpoint=f"hf:{DATA / 'hf_bert_classes'}", mode=mode)
    config, problems, _ = initial_weights.with_model_of_weights(
        dataclasses.replace(given, model=model, run=settings), {"task", "labels"}
    )
    assert not problems
    return opened(config)


def test_a_trained_classifier_keeps_its_classes_in_the_order_of_the_flags():
    trained = open_weights(Place("hf", str(DATA / "hf_bert_classes")))
    assert trained.model.labels == ("bad", "fine", "good")
    weights = classifier_of("good", "Fine", "bad", mode="evaluate")
    assert weights.model.labels == ("good", "Fine", "bad")
    for name in weights.shapes:
        expected = trained.read(name)
        expected = expected[..., ::-1] if name.startswith("classifier") else expected
        np.testing.assert_array_equal(weights.read(name), expected)


def test_a_trained_classifier_of_other_classes_is_never_left_out_without_a_word(caplog):
    caplog.set_level("INFO")
    assert "classifier" not in classifier_of("bad", "good").parts
    assert "its classifier is for classification with the classes bad, fine, good; that of" in caplog.messages[-1]
    assert "classifier" not in classifier_of("bad", "fine", "good", task="multi_label").parts
    assert caplog.messages[-1].endswith("that of multi_label begins with random weights")
    with pytest.raises(
        FormatError, match="with the classes bad, fine, good, and --labels names others; remove --labels"
    ):
        classifier_of("bad", "good", mode="evaluate")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("place", [BERT, GPT])
def test_masters_have_the_bits_of_the_weights(place, precision):
    config = completed(f"--init_checkpoint={place}", f"--precision={precision}")[0].resolve(1)
    config = runs.with_sizes(config)
    weights = opened(config)
    state = new_run(config, Mesh(), weights.shard).optimizer.state
    assert state.names == list(weights.shapes)
    for name, master in zip(state.names, state.masters, strict=True):
        np.testing.assert_array_equal(master.numpy(), weights.read(name), err_msg=name)


@pytest.mark.slow
@pytest.mark.multirank
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param("--split_opt_state", marks=pytest.mark.nightly),
        pytest.param("--tensor_parallel_size=2", marks=pytest.mark.nightly),
        "--pipeline_parallel_size=2",
    ],
)
def test_every_layout_begins_with_the_weights_and_hands_them_back(tmp_path, layout):
    place, output = f"hf:{DATA / 'hf_bert_masked_lm'}", tmp_path / "run"
    common = [*TRAIN, f"--init_checkpoint={place}", "--init_missing", f"--output_dir={output}", "--max_steps=1"]
    common += ["--learning_rate=1e-30", "--weight_decay=0", "--eval_every=-1", "--precision=bf16", layout]
    output_of_ranks = run_ranks(2, ["-m", "tftrain.run", *common, "--grad_accum_steps=2"])
    assert f"starting from {place}" in output_of_ranks
    weights = open_weights(Place("hf", place[3:]))
    own = open_weights(Place("tftrain", str(output)))
    for name in weights.shapes:
        np.testing.assert_array_equal(own.read(name), weights.read(name), err_msg=name)
    assert convert.main(["convert", f"--from=tftrain:{output}", f"--to=hf:{tmp_path / 'back'}"]) == 0
    expected = np.load(DATA / "hf_bert_masked_lm/expected.npz")
    found = outputs(open_weights(Place("hf", str(tmp_path / "back"))), expected)
    real = expected["input_mask"].astype(bool)
    np.testing.assert_allclose(found["mlm_logits"][real], expected["mlm_logits"][real], rtol=1e-5, atol=1e-5)
