"""What may change between a checkpoint and the run that goes on from it."""

import dataclasses
import json

import pytest

from tftrain.checkpoint.errors import AgreedCheckpointError, CheckpointError
from tftrain.config.fields import ON_RESUME, on_resume, sections
from tftrain.config.train import TrainConfig
from tftrain.state import resume_compatibility

DATA = {"the vocabulary": "101 tokens with SHA-256 0123", "manifest.json of the data": "SHA-256 4567"}
SAVED = TrainConfig()
KINDS = {name: kind for section in sections(SAVED) for name, kind in on_resume(section).items()}
FREE = {name for name, kind in KINDS.items() if kind in ("free", "local", "host")}


def with_flag(name, value, config=SAVED):
    for section in dataclasses.fields(config):
        if hasattr(getattr(config, section.name), name):
            changed = dataclasses.replace(getattr(config, section.name), **{name: value})
            return dataclasses.replace(config, **{section.name: changed})
    raise AssertionError(name)


KINDS_THAT_MATTER = resume_compatibility.kinds()


def changes(now, data=DATA, saved=SAVED, saved_data=DATA):
    run = json.loads(json.dumps({"config": dataclasses.asdict(saved), "data": saved_data}))
    return resume_compatibility.changes(now, data, run, "step_00000001")


def test_nothing_changed_needs_no_word():
    assert changes(SAVED) == []


def test_every_flag_says_whether_it_may_change():
    """A new flag of a section without ON_RESUME must say `on_resume=`."""
    assert {name: kind for name, kind in KINDS.items() if kind not in ON_RESUME} == {}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("fixed", "hidden_size activation optimizer seed"),
        ("named", "learning_rate hidden_dropout_prob global_batch_size masked_lm_prob temperature"),
        ("logged", "precision grad_accum_dtype max_steps warmup_steps"),
        ("free", "ln_impl attn_impl data_dir micro_batch_size tensor_parallel_size checkpoint_every"),
        ("local", "output_dir resume grad_accum_steps"),
        ("host", "cpu_threads cache_dir"),
    ],
)
def test_declarations_say_what_is_meant(kind, names):
    assert {KINDS[name] for name in names.split()} == {kind}


@pytest.mark.parametrize("name", sorted(FREE - {"change_on_resume"}))
def test_what_does_not_matter_may_change(name):
    assert changes(with_flag(name, "another")) == []


# For phases, see tests/train/test_phases.py.
@pytest.mark.parametrize(("name", "kind"), [each for each in KINDS_THAT_MATTER.items() if each[0] != "phases"])
def test_what_matters_is_refused_or_told(name, kind):
    now = with_flag(name, "another")
    words = f"--{name}=another, saved with"
    if kind == "logged":
        (line,) = changes(now)
        assert words in line
        return
    with pytest.raises(AgreedCheckpointError, match=words) as caught:  # So one rank alone prints it.
        changes(now)
    assert ("--change_on_resume" in str(caught.value)) == (kind == "named")
    permitted = with_flag("change_on_resume", name, now)
    if kind == "named":
        (line,) = changes(permitted)
        assert words in line
        assert resume_compatibility.flag_problems(permitted.checkpoint.change_on_resume) == []
    else:
        (problem,) = resume_compatibility.flag_problems(permitted.checkpoint.change_on_resume)
        assert f"it permits no change of {name}" in str(problem)


def test_the_micro_batch_of_embeddings_is_no_part_of_their_loss():
    embeddings = with_flag("task", "embedding")
    assert changes(with_flag("micro_batch_size", 4, embeddings), saved=embeddings) == []


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
    run = json.loads(json.dumps({"config": dataclasses.asdict(SAVED), "data": DATA}))
    other_examples = {**DATA, "manifest.json of the data": "SHA-256 89ab"}
    resume_compatibility.check_model(SAVED.model, other_examples, run, "x")
    with pytest.raises(CheckpointError, match="--activation=geglu, saved with gelu"):
        resume_compatibility.check_model(with_flag("activation", "geglu").model, DATA, run, "x")
    with pytest.raises(CheckpointError, match="the vocabulary: 102 tokens, saved with 101 tokens"):
        resume_compatibility.check_model(SAVED.model, {"the vocabulary": "102 tokens"}, run, "x")


def test_a_flag_that_an_older_checkpoint_lacks_had_its_default():
    sections = json.loads(json.dumps(dataclasses.asdict(SAVED)))
    assert sections["model"].pop("rope_scaling") == "none"
    run = {"config": sections, "data": DATA}
    assert resume_compatibility.changes(SAVED, DATA, run, "x") == []
    with pytest.raises(CheckpointError, match="--rope_scaling=linear:2, saved with none"):
        resume_compatibility.changes(with_flag("rope_scaling", "linear:2"), DATA, run, "x")


@pytest.mark.parametrize(
    ("flags", "saved", "words"),
    [
        ({}, {"core": "softmax", "dropout_bits": 8}, []),
        ({}, None, ["masks of attention probabilities from 8 bits each, saved with 16"]),
        ({}, "nonsense", ["saved with 16"]),
        ({"attention_probs_dropout_prob": 0.0}, None, []),
        ({"attn_impl": "flash"}, {"core": "cudnn", "dropout_bits": 8}, []),
        ({"attn_impl": "auto"}, {"core": "cudnn", "dropout_bits": 8}, ["which is softmax here; it was 'cudnn'"]),
    ],
)
def test_what_changes_in_attention_without_a_flag_is_told(flags, saved, words):
    now = {"core": "softmax", "dropout_bits": 8}
    lines = resume_compatibility.attention_changes(dataclasses.replace(SAVED.model, **flags), now, saved)
    assert len(lines) == len(words)
    assert all(expected in line for line, expected in zip(lines, words, strict=True))
