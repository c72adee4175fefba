"""What may change between a checkpoint and the run that goes on from it."""

import dataclasses
import json

import pytest

from tftrain.checkpoint.errors import CheckpointError
from tftrain.config import TrainConfig
from tftrain.fields import implementations, sections
from tftrain.saving import resume_compatibility

DATA = {"the vocabulary": "101 tokens with SHA-256 0123", "manifest.json of the data": "SHA-256 4567"}
SAVED = TrainConfig()
# Every flag that may change without a word: where, how fast, and on how many ranks the same is computed.
FREE = {
    *implementations(SAVED.model),
    *("data_dir", "train_files", "eval_files", "data_readers"),
    *("micro_batch_size", "grad_accum_steps", "fit_micro_batch"),
    *("tensor_parallel_size", "sequence_parallel", "split_opt_state", "split_grad_accum", "state_split_strategy"),
    *("pipeline_parallel_size", "pipeline_schedule", "virtual_pipeline_size", "pipeline_split"),
    *("jit_compile", "deterministic", "activation_checkpointing", "memory_optimization", "suppress_grappler"),
    *("enable_resource_variables", "sparse_as_dense", "cpu_threads", "huge_pages", "device_peak_tflops"),
    *("mode", "output_dir", "log_every", "log_format", "trace_pipeline", "log_level", "eval_every", "eval_examples"),
    *("checkpoint_every", "checkpoint_minutes", "checkpoint_async", "keep_last", "keep_every", "max_failed_saves"),
    *("resume", "resume_check", "change_on_resume", "init_checkpoint", "init_missing"),
    *("start_timeout_seconds", "step_timeout_seconds", "save_timeout_seconds", "exit_timeout_seconds"),
    *("train_file", "eval_file", "glue_dir", "tokenizer_dir", "best_metric", "early_stopping", "seeds"),
    *("max_answer_length", "n_best", "null_score_threshold"),
    *("preempt_save_seconds", "max_nan_steps", "spike_zscore", "machine_file", "check_memory", "measure_products"),
}


def with_flag(name, value, config=SAVED):
    for section in dataclasses.fields(config):
        if hasattr(getattr(config, section.name), name):
            changed = dataclasses.replace(getattr(config, section.name), **{name: value})
            return dataclasses.replace(config, **{section.name: changed})
    raise AssertionError(name)


def changes(now, data=DATA, saved=SAVED, saved_data=DATA):
    run = json.loads(json.dumps({"config": dataclasses.asdict(saved), "data": saved_data}))
    return resume_compatibility.changes(now, data, run, "step_00000001")


def test_nothing_changed_needs_no_word():
    assert changes(SAVED) == []


def test_every_flag_has_its_place():
    """A new flag must be put somewhere: here, if it changes no number."""
    names = {field.name for section in sections(SAVED) for field in dataclasses.fields(section)}
    assert names - FREE == resume_compatibility.kinds(SAVED).keys()


@pytest.mark.parametrize("name", sorted(FREE - {"change_on_resume"}))
def test_what_does_not_matter_may_change(name):
    assert changes(with_flag(name, "another")) == []


@pytest.mark.parametrize(("name", "kind"), resume_compatibility.kinds(SAVED).items())
def test_what_matters_is_refused_or_told(name, kind):
    now = with_flag(name, "another")
    words = f"--{name}=another, saved with"
    if kind == "logged":
        (line,) = changes(now)
        assert words in line
        return
    with pytest.raises(CheckpointError, match=words) as caught:
        changes(now)
    assert ("--change_on_resume" in str(caught.value)) == (kind == "named")
    permitted = with_flag("change_on_resume", name, now)
    if kind == "named":
        (line,) = changes(permitted)
        assert words in line
        assert resume_compatibility.flag_problems(permitted) == []
    else:
        (problem,) = resume_compatibility.flag_problems(permitted)
        assert f"{name} can't be named there" in str(problem)


def test_all_differences_are_listed_at_once():
    now = with_flag("seed", 2, with_flag("decay_power", 2.0, with_flag("hidden_size", 12)))
    with pytest.raises(CheckpointError) as caught:
        changes(now)
    for words in (
        "--hidden_size=12, saved with 768",
        "--decay_power=2.0, saved with 1.0",
        "--seed=2, saved with 1",
        "give --hidden_size=768 --seed=1 or choose another checkpoint with --resume",
        "leave out decay_power to go on as before, or add --change_on_resume=decay_power",
    ):
        assert words in str(caught.value)


def test_the_fused_rules_are_the_plain_ones():
    assert changes(with_flag("optimizer", "fused_lamb")) == []


def test_another_vocabulary_is_refused_and_other_examples_are_told_of():
    with pytest.raises(CheckpointError, match="the vocabulary: 102 tokens, saved with 101 tokens"):
        changes(SAVED, {**DATA, "the vocabulary": "102 tokens"})
    (line,) = changes(SAVED, {"the vocabulary": "101 tokens"}, saved_data={})
    assert "the vocabulary: 101 tokens, saved with None" in line
    (line,) = changes(SAVED, {**DATA, "manifest.json of the data": "SHA-256 89ab"})
    assert "SHA-256 89ab, saved with SHA-256 4567" in line


@pytest.mark.parametrize("run", [{}, {"config": []}, {"config": {"model": 1}}, {"config": {}, "data": 3}])
def test_a_manifest_without_a_configuration_is_refused(run):
    with pytest.raises(CheckpointError, match="step_00000001"):
        resume_compatibility.changes(SAVED, DATA, run, "step_00000001")


def test_evaluation_asks_for_the_same_model_and_vocabulary_only():
    run = {"config": dataclasses.asdict(SAVED), "data": DATA}
    other_examples = {**DATA, "manifest.json of the data": "SHA-256 89ab"}
    resume_compatibility.check_model(with_flag("max_steps", 7, with_flag("seed", 5)), other_examples, run, "x")
    with pytest.raises(CheckpointError, match="--activation=geglu, saved with gelu"):
        resume_compatibility.check_model(with_flag("activation", "geglu"), DATA, run, "x")
    with pytest.raises(CheckpointError, match="the vocabulary: 102 tokens, saved with 101 tokens"):
        resume_compatibility.check_model(SAVED, {"the vocabulary": "102 tokens"}, run, "x")
