"""Completions of prompts: what is learned, how it is packed, and that a run's scores are what generation gives."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.finetune.files import write_completions
from tests.formats.models import DATA
from tests.kit import programs, runs
from tests.kit.programs import done
from tftrain import run
from tftrain.checkpoint.errors import CheckpointError
from tftrain.cli import flags
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model_source import ModelSource
from tftrain.config.predict import PredictFlags
from tftrain.config.train import TrainConfig
from tftrain.data import pipeline
from tftrain.files.errors import DataError
from tftrain.finetune import completions, scorers
from tftrain.inference import candidates, trained_model
from tftrain.inputs.inputs import Inputs
from tftrain.parallel.mesh import Mesh
from tftrain.tasks import make_task, sources
from tftrain.tokenizer import tokenizer_files

LLAMA = DATA / "hf_llama"
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}<|endoftext|>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completions")
    return write_completions(folder / "train.jsonl", 60, 1), write_completions(folder / "eval.jsonl", 23, 2)


def arguments(files, *more):
    train, held_out = files
    sources = (f"--train_file={train}", f"--eval_file={held_out}", f"--init_checkpoint=hf:{LLAMA}")
    return ("--task=completion", *sources, "--max_seq_length=48", "--micro_batch_size=2", *more)


@pytest.fixture(scope="module")
def task(files):
    """The task in fp64, and the batch of all its held-out rows, of which one only fills it."""
    completed, problems = run.read(["tftrain.run", *arguments(files, "--output_dir=unused")])
    assert problems == []
    config = runs.with_sizes(completed.config.resolve(1))
    made = make_task(config, Mesh())
    made.model = trained_model.load(ModelSource(init_checkpoint=f"hf:{LLAMA}"), dtype="float64").network
    source = sources.open_source(made, Inputs.open(config).data[0], "eval", 1)
    rows = source.num_examples
    return made, source, next(iter(pipeline.eval_batches(source, config.data, rows + 1, 0, rows + 1)))


def alone(network, ids, is_learned):
    """The cross-entropy of the learned tokens of an example by itself, and whether each is the best one, in fp64."""
    logits = network.logits(network.hidden_states({"input_ids": tf.constant(ids[None, :-1])})).numpy()[0]
    shifted = logits - logits.max(-1, keepdims=True)
    entropy = np.log(np.exp(shifted).sum(-1)) - np.take_along_axis(shifted, ids[1:, None], -1)[:, 0]
    return entropy[is_learned[1:]], (logits.argmax(-1) == ids[1:])[is_learned[1:]]


def test_sums_are_those_of_every_completion_by_itself(task, files):
    made, source, batch = task
    own = tokenizer_files.read(LLAMA)
    examples = completions.read_examples(str(files[1]), FineTuningConfig(), own)
    encoded = completions.encode(examples, own)
    found = {name: value.numpy() for name, value in made.compute(batch).items()}
    each = [alone(made.model, *example) for example in encoded]
    assert source.num_examples < len(examples) / 2
    assert found["examples"] == len(examples)
    assert found["weight"] == sum(len(entropy) for entropy, _ in each)
    np.testing.assert_allclose(found["loss_sum"], sum(entropy.sum() for entropy, _ in each), rtol=1e-12)
    assert found["correct"] == sum(correct.sum() for _, correct in each)
    scores = sources.scorer_of(made, source).scores(found["outputs"])
    mean = np.concatenate([entropy for entropy, _ in each]).mean()
    np.testing.assert_allclose(scores["negative_perplexity"], -np.exp(mean), rtol=1e-5)
    assert scores["exact_match"] == np.mean([correct.all() for _, correct in each])
    predictions = list(sources.scorer_of(made, source).predictions(found["outputs"]))
    assert [each["prompt"] for each in predictions] == [example.parts[0][0] for example in examples]
    np.testing.assert_allclose([row["perplexity"] for row in predictions], [np.exp(e.mean()) for e, _ in each], 1e-5)


def chats(tmp_path, *messages):
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": each}) + "\n" for each in messages))
    return str(path)


def say(role, content):
    return {"role": role, "content": content}


CHAT = [say("user", "a"), say("assistant", "b")]


def test_the_assistant_is_learned_and_special_tokens_are_tokens(tmp_path):
    messages = [say("system", "s"), say("user", "a"), say("assistant", "b c"), say("user", "d"), say("assistant", "e")]
    own = tokenizer_files.read(LLAMA)._replace(chat_template=TEMPLATE)
    (example,) = completions.read_examples(chats(tmp_path, messages), FineTuningConfig(), own)
    end = "<|endoftext|>\n"
    prompts = f"<system>s{end}<user>a{end}<assistant>", f"<user>d{end}<assistant>"
    assert example.parts == ((prompts[0], False), (f"b c{end}", True), (prompts[1], False), (f"e{end}", True))
    ((ids, is_learned),) = completions.encode([example], own)
    assert np.sum(ids == own.vocabulary.end_id) == 5
    assert own.build(with_special_tokens=True)(["".join(text for text, _ in example.parts)])[0].tolist() == ids.tolist()
    assert is_learned.sum() == sum(len(part) for part in own.build(True)([f"b c{end}", f"e{end}"]))
    assert completions.end_of_answer(completions.Template(own)) == "<|endoftext|>"


def test_an_answer_of_weight_0_is_read_and_not_learned(tmp_path):
    answers = [say("assistant", "b") | weight for weight in ({"weight": 0}, {"weight": 1}, {"weight": None}, {})]
    messages = [each for answer in answers for each in (say("user", "a"), answer)]
    own = tokenizer_files.read(LLAMA)._replace(chat_template=TEMPLATE)
    (example,) = completions.read_examples(chats(tmp_path, messages), FineTuningConfig(), own)
    assert [is_learned for _, is_learned in example.parts] == [False, False, *[False, True] * 3]
    assert "".join(text for text, _ in example.parts) == "<user>a<|endoftext|>\n<assistant>b<|endoftext|>\n" * 4
    ((_, is_learned),) = completions.encode([example], own)
    assert is_learned.sum() == 3 * len(own.build(True)(["b<|endoftext|>\n"])[0])


def test_a_template_has_the_special_tokens_and_the_functions_of_transformers(tmp_path):
    text = "{{ bos_token }}{% for m in messages if m.role != 'x' %}{{ m | tojson }}{% endfor %}"
    shutil.copytree(LLAMA, tmp_path / "model")
    settings = {"bos_token": {"content": "<|endoftext|>"}, "eos_token": "</s>", "tokenizer_type": "bpe"}
    (tmp_path / "model/tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "model/chat_template.jinja").write_text(text)
    own = tokenizer_files.read(tmp_path / "model")
    found = completions.Template(own)([say("x", "1"), say("user", "<\u00e9>")], False)
    assert found == '<|endoftext|>{"role": "user", "content": "<\u00e9>"}'
    (tmp_path / "again").mkdir()
    tokenizer_files.write(tmp_path / "again", own)
    assert tokenizer_files.read(tmp_path / "again") == own


@pytest.mark.parametrize(
    ("messages", "template", "message"),
    [
        ([], TEMPLATE, "line 1: messages is not a list of objects"),
        ([say("user", "a")], TEMPLATE, "line 1: no message of the assistant"),
        ([CHAT[0], CHAT[1] | {"weight": 0}], TEMPLATE, "without weight 0, so there is nothing to"),
        ([CHAT[0], CHAT[1] | {"weight": 0.5}], TEMPLATE, "line 1: weight of a message is 0.5; exp"),
        ([CHAT[0], CHAT[1] | {"weight": "0"}], TEMPLATE, "weight of a message is '0'; expected 0"),
        (CHAT, None, "no chat template; name a file with --chat_template"),
        (CHAT, "{{ raise_exception('no') }}", "can't make a text of the messages: no"),
        (CHAT, "{{ messages | length }}", "changes the text of earlier messages"),
    ],
    ids=str,
)
def test_a_chat_that_gives_no_text_is_refused(tmp_path, messages, template, message):
    own = tokenizer_files.read(LLAMA)._replace(chat_template=template)
    with pytest.raises(DataError, match=message):
        completions.read_examples(chats(tmp_path, messages), FineTuningConfig(), own)


def test_the_text_beside_a_named_prompt_is_left_out(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"instruction": "a", "input": "b", "output": "c"}))
    settings = FineTuningConfig(text_column="instruction")
    (example,) = completions.read_examples(str(path), settings, tokenizer_files.read(LLAMA))
    assert (example.prompt, example.completion) == ("a", "c")


@pytest.mark.parametrize(
    ("after", "end"),
    [("{{ eos_token }}\n", "<|endoftext|>"), ("<T></T>{{ m.content }}<E>\n", "<E>"), ("\n", "\n"), ("", "")],
)
def test_an_answer_ends_as_the_template_ends_it(after, end):
    after = after if "m.content" in after else "{{ m.content }}" + after
    text = "{% for m in messages %}{% if m.role == 'user' %}<U>{{ m.content }}{% else %}<A>" + after
    text += "{% endif %}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}"
    own = tokenizer_files.read(LLAMA)._replace(chat_template=text)
    assert completions.end_of_answer(completions.Template(own)) == end


def test_an_example_is_cut_at_its_end_and_left_out_if_no_completion_is_left():
    example = completions.Example(0, "here", (("a", False), ("b", True)), False)
    encoded = [completions.Encoded(np.arange(9, dtype=np.int32), np.arange(9) >= begin) for begin in (3, 6, 7)]
    rows = completions.CompletionRows([example] * 3, encoded, 5)
    assert (rows.left_out, rows.cut) == (2, 1)
    assert rows.features["labels"].tolist() == [[-1, -1, 3, 4, 5]]
    assert rows.examples[0][0][0].is_cut
    assert rows.examples[0][0][1].tolist() == [2, 3, 4]
    assert scorers.CompletionScorer(rows.examples).scores(np.array([[[0, 1]] * 5]))["exact_match"] == 0
    with pytest.raises(DataError, match="no completion begins in the first 5 tokens"):
        completions.CompletionRows([example] * 2, encoded[1:], 5)


@pytest.mark.slow
def test_a_run_matches_exactly_what_generation_gives(files, tmp_path):
    options = ("--optimizer=adamw", "--learning_rate=0.01", "--eval_every=-1", f"--output_dir={tmp_path / 'run'}")
    done("run", " ".join(arguments(files, *options, "--max_steps=60")))
    done("run", f"--mode=evaluate --output_dir={tmp_path / 'run'}")
    done("convert", f"--from=tftrain:{tmp_path / 'run'} --to=hf:{tmp_path / 'hf'}")
    rows = [json.loads(line) for line in (tmp_path / "run/predictions.jsonl").read_text().splitlines()]
    model = trained_model.load(ModelSource(init_checkpoint=f"hf:{tmp_path / 'hf'}"))
    prompts = [row["prompt"] for row in rows]
    settings = PredictFlags(top_k=1, max_new_tokens=40)
    found = candidates.next_tokens(model, settings)(trained_model.TextEncoder(model)(prompts))
    matches = [each.text == row["completion"] for each, row in zip(found, rows, strict=True)]
    assert matches == [row["exact_match"] for row in rows]
    assert 0 < sum(matches) < len(rows)


@pytest.mark.slow
def test_a_chat_template_stays_with_the_model(tmp_path):
    messages = [say("user", "the model"), say("assistant", "of words")]
    (tmp_path / "template").write_text(TEMPLATE)
    file, folder = chats(tmp_path, *[messages] * 8), tmp_path / "run"
    options = f"--task=completion --init_checkpoint=hf:{LLAMA} --train_file={file} --chat_template={tmp_path}/template"
    done("run", f"{options} --max_seq_length=64 --micro_batch_size=1 --max_steps=1 --output_dir={folder}")
    done("convert", f"--from=tftrain:{folder} --to=hf:{tmp_path / 'hf'}")
    assert tokenizer_files.read(tmp_path / "hf").chat_template == TEMPLATE
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config["eos_token_id"] == tokenizer_files.read(tmp_path / "hf").vocabulary.end_id
    (tmp_path / "template").write_text(TEMPLATE.replace("<assistant>", "[assistant>").replace("<{{", "[{{"))
    with pytest.raises(CheckpointError, match="the chat template"):
        done("run", f"--output_dir={folder} --max_steps=2")
    done("predict", f"--output_dir={folder} --max_new_tokens=3 --chat hello")
    code, lines = programs.outcome("predict", f"--init_checkpoint=hf:{LLAMA} --max_new_tokens=3 --chat hello", 0, {})
    assert (code, "has no chat template; remove this flag" in str(lines)) == (1, True)


def test_the_launcher_takes_the_family_of_the_weights(files, tmp_path):
    config = flags.parse(TrainConfig, ["tftrain.run", *arguments(files)])
    assert [problem.flag for problem in config.problems(1) if problem.flag == "task"] == ["task"]
    given = " ".join(("-np 1", *arguments(files, "--learning_rate=-1", f"--output_dir={tmp_path}")))
    assert programs.outcome("launch", given, 0, {}) == (2, ["--learning_rate=-1.0: expected a number above 0"])
