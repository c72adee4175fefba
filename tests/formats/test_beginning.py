"""The token that transformers puts before a text: it is read, stays with a run, and is written again."""

import json
import shutil

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.finetune.files import write_completions
from tests.formats.models import DATA
from tftrain import run
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model_source import ModelSource
from tftrain.files.errors import FormatError
from tftrain.finetune import completions
from tftrain.inference import trained_model
from tftrain.inputs.inputs import Inputs
from tftrain.tokenizer import tokenizer_files

BOS = "<|begin_of_text|>"
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def template(*before):
    """The post-processor of the library that puts tokens, given by name and id, before a text."""
    pieces = [{"SpecialToken": {"id": name, "type_id": 0}} for name, _ in before]
    special = {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in before}
    pair = [*pieces, TEXT, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": [*pieces, TEXT], "pair": pair, "special_tokens": special}


def model_folder(folder, post_processor, **settings):
    """A copy of the Llama model whose tokenizer has BOS in place of its last token, as Llama 3's has it."""
    shutil.copytree(DATA / "hf_llama", folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary, merges = content["model"]["vocab"], content["model"]["merges"]
    last = max(vocabulary, key=vocabulary.get)
    number = vocabulary.pop(last)
    content["model"]["merges"] = [each for each in merges if "".join(each) != last]
    content["added_tokens"].append({**content["added_tokens"][0], "id": number, "content": BOS})
    before = [(name, number if name == BOS else 0) for name in post_processor]
    content["post_processor"] = {"type": "Sequence", "processors": [BYTES, template(*before)]}
    path.write_text(json.dumps(content))
    settings = {"bos_token": BOS, "eos_token": "<|endoftext|>"} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def llama(tmp_path):
    return model_folder(tmp_path / "llama", [BOS])


def library(folder):
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("before", "settings", "begins"),
    [
        *(([BOS], {}, True), ([BOS], {"bos_token": None}, True), ([BOS], {"add_bos_token": True}, True)),
        *(([BOS], {"add_bos_token": False}, False), ([], {"add_bos_token": True}, True), ([], {}, False)),
        ([BOS], {"tokenizer_type": "bpe"}, False),
    ],
)
def test_the_token_before_a_text_stays_with_a_tokenizer(tmp_path, before, settings, begins):
    own = tokenizer_files.read(model_folder(tmp_path / "model", before, **settings))
    assert [own.vocabulary.tokens[number] for number in own.begin_ids] == [BOS] * begins
    (tmp_path / "written").mkdir()
    tokenizer_files.write(tmp_path / "written", own)
    assert tokenizer_files.read(tmp_path / "written") == own
    written = json.loads((tmp_path / "written/tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == ("PreTrainedTokenizerFast" if begins else "GPT2TokenizerFast")
    plain = own.build()(["a b"])[0].tolist()
    assert library(tmp_path / "written").encode("a b").ids == own.begin_ids.tolist() + plain


def test_several_tokens_before_a_text_are_refused_and_other_families_put_none(tmp_path):
    folder = model_folder(tmp_path / "model", [BOS, "<|endoftext|>"])
    with pytest.raises(FormatError, match=r"puts the tokens \[\d+, 0\] before a text; expected one of the vocab"):
        tokenizer_files.read(folder)
    others = (tokenizer_files.read(DATA / f"hf_{name}") for name in ("gpt2", "llama", "qwen2", "qwen3"))
    assert not any(len(tokenizer.begin_ids) for tokenizer in others)


def test_predict_and_completions_read_the_tokens_of_the_library(llama):
    model, theirs = trained_model.load(ModelSource(init_checkpoint=f"hf:{llama}")), library(llama)
    own, end = model.tokenizer, model.tokenizer.vocabulary.end_id
    prompts = ["a prompt", ""]
    expected = [theirs.encode(prompt).ids for prompt in prompts]
    assert expected[1] == own.begin_ids.tolist()
    encode = trained_model.TextEncoder(model)
    assert [sample.ids.tolist() for sample in encode(prompts)] == expected
    examples = [completions.Example(0, "", ((prompt, False), (" of it", True)), False) for prompt in prompts]
    completion = theirs.encode(" of it", add_special_tokens=False).ids
    for (ids, is_learned), before in zip(completions.encode(examples, own), expected, strict=True):
        assert ids.tolist() == [*before, *completion, end]
        assert is_learned.tolist() == [False] * len(before) + [True] * (len(completion) + 1)


def test_a_long_prompt_keeps_the_token_before_it(llama):
    model = trained_model.load(ModelSource(init_checkpoint=f"hf:{llama}"))
    own = model.tokenizer
    encode = trained_model.TextEncoder(model)
    encode._longest = 4  # Llama's positions have no end.
    (sample,) = encode(["one two three four five six"])
    whole = own.build()(["one two three four five six"])[0]
    assert sample.ids.tolist() == [*own.begin_ids, *whole[-3:]]
    assert sample.cut == 1 + len(whole) - 4


def test_a_chat_template_writes_its_own_beginning(llama, tmp_path):
    text = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    text += "{% if add_generation_prompt %}[assistant]{% endif %}"
    model = trained_model.load(ModelSource(init_checkpoint=f"hf:{llama}"))
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": messages}))
    for begin in ("", "{{ bos_token }}"):
        own = model.tokenizer._replace(chat_template=begin + text)
        examples = completions.read_examples(str(path), FineTuningConfig(), own)
        ((ids, _),) = completions.encode(examples, own)
        prompt = completions.question("a", completions.Template(own))
        encode = trained_model.TextEncoder(model._replace(tokenizer=own), with_special_tokens=True)
        (sample,) = encode([prompt])
        assert np.sum(ids == own.begin_ids[0]) == np.sum(sample.ids == own.begin_ids[0]) == bool(begin)
        assert ids[: len(sample.ids)].tolist() == sample.ids.tolist()


def test_a_run_from_before_goes_on_without_the_token(llama, tmp_path):
    files = [f"--{split}_file={write_completions(tmp_path / f'{split}.jsonl', 3, 1)}" for split in ("train", "eval")]
    flags = ["--task=completion", *files, f"--init_checkpoint=hf:{llama}", f"--output_dir={tmp_path / 'run'}"]

    def inputs(*more):
        completed, problems = run.read(["tftrain.run", *flags, *more])
        assert problems == []
        return Inputs.open(completed.config)

    inputs().keep_tokenizer(False)
    checkpoint = tmp_path / "run/checkpoints/step_00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    assert inputs().tokenizer.begins_with_bos
    assert inputs().identity["the token before a text"] == BOS
    path = tmp_path / "run/tokenizer/tokenizer_config.json"
    settings = json.loads(path.read_text())
    assert settings.pop("add_bos_token")
    path.write_text(json.dumps(settings))
    assert not inputs().tokenizer.begins_with_bos
    assert "the token before a text" not in inputs().identity
    assert inputs("--resume=none").tokenizer.begins_with_bos
