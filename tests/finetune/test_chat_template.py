"""A chat template has what transformers gives it, and its generation blocks decide what is learned."""

import datetime
import json
import shutil

import pytest

from tests.formats.models import DATA
from tftrain.config.convert import Place
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.files.errors import DataError, FormatError
from tftrain.finetune import completions
from tftrain.formats.registry import open_weights
from tftrain.tokenizer import tokenizer_files

LLAMA = DATA / "hf_llama"
BLOCKS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
CHAT = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def with_template(text):
    return tokenizer_files.read(LLAMA)._replace(chat_template=text)


def parts(tmp_path, template, row):
    """The texts of a row of JSONL, each with whether it is learned."""
    (tmp_path / "chat.jsonl").write_text(json.dumps(row) + "\n")
    path = str(tmp_path / "chat.jsonl")
    (example,) = completions.read_examples(path, FineTuningConfig(train_file=path), with_template(template))
    return [each for each in example.parts if each[0]]


def test_what_is_in_generation_blocks_is_learned(tmp_path):
    chat = [say(*each) for each in CHAT]
    expected = [("<user>a<assistant>", False), ("b</s>", True), ("<user>c<assistant>", False), ("d</s>", True)]
    assert parts(tmp_path, BLOCKS, {"messages": chat}) == expected
    chat[1]["weight"] = 0
    assert parts(tmp_path, BLOCKS, {"messages": chat}) == [*expected[:1], ("b</s>", False), *expected[2:]]


@pytest.mark.parametrize(
    ("template", "learned"),
    [
        # The text of earlier messages depends on later ones.
        ("{{ messages|length }}" + BLOCKS, ["b</s>", "d</s>"]),
        # A block with white space control, in a macro, captured, changed by a filter, and one in another one.
        (BLOCKS.replace("{% generation %}", "{%- generation -%}\n"), ["b</s>", "d</s>"]),
        ("{% macro x(m) %}" + BLOCKS + "{% endmacro %}{{ x(messages) }}", ["b</s>", "d</s>"]),
        ("{% set x %}" + BLOCKS + "{% endset %}{{ x|trim }}", ["b</s>", "d</s>"]),
        ("{% generation %}" + BLOCKS + "!{% endgeneration %}?", ["<user>a<assistant>b</s><user>c<assistant>d</s>!"]),
        ("{% generation %}{{ messages[-1].content }}{% endgeneration %}", ["d"]),
    ],
)
def test_generation_blocks_may_be_anywhere(tmp_path, template, learned):
    found = parts(tmp_path, template, {"messages": [say(*each) for each in CHAT]})
    assert [text for text, is_learned in found if is_learned] == learned


def test_weights_that_fit_no_generation_block_are_refused(tmp_path):
    chat = [say(*each) for each in CHAT]
    chat[1]["weight"] = 0
    with pytest.raises(DataError, match="line 1: the template has 1 generation blocks for 2 messages"):
        parts(tmp_path, "{% generation %}x{% endgeneration %}", {"messages": chat})


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% if tools is not none %}{{ tools|tojson }}{% endif %}.", "."),
        ("{% if documents is none %}.{% endif %}", "."),
        ("{{ strftime_now('%Y') }}", str(datetime.datetime.now().year)),
        ("{% if strftime_now is defined %}.{% else %}?{% endif %}", "."),
        ("{{ messages[0].content|tojson(ensure_ascii=True) }}", '"\\u00e9<"'),
        ("{{ messages[0]|tojson(indent=1, sort_keys=true) }}", '{\n "content": "é<",\n "role": "user"\n}'),
        ("{{ {'b': 1, 'a': [1, 2]}|tojson(separators=(',', ':')) }}", '{"b":1,"a":[1,2]}'),
        ("{% for m in messages %}{% break %}{% endfor %}.", "."),
        ("{% set n = namespace(x=1) %}{% set n.x = 2 %}{{ n.x }}{{ dict(a=1).a }}", "21"),
        ("{{ bos_token }}{{ no_such_token }}", "<|begin_of_text|>"),
    ],
)
def test_a_template_has_what_transformers_gives_it(template, text):
    own = with_template(template)._replace(special=(("bos_token", "<|begin_of_text|>"),))
    assert completions.Template(own)([say("user", "é<")], False) == text


CALLS = (
    "{{ tools|tojson }}{% for m in messages %}<{{ m.role }}>"
    "{{ m.tool_calls[0].function.name if m.tool_calls else m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize("as_text", [False, True])
def test_a_template_reads_tools_and_their_calls(tmp_path, as_text):
    tools = [{"type": "function", "function": {"name": "f"}}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    row = {"messages": [say("user", "a"), call, say("tool", "1"), say("assistant", "b")]}
    row["tools"] = json.dumps(tools) if as_text else tools
    found = parts(tmp_path, CALLS, row)
    assert found == [
        (json.dumps(tools) + "<user>a<assistant>", False),
        ("f", True),
        ("<tool>1<assistant>", False),
        ("b", True),
    ]


def test_parts_of_text_are_one_text_unless_the_template_asks_for_types(tmp_path):
    pieces = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    row = {"messages": [say("user", pieces), say("assistant", "c")]}
    assert parts(tmp_path, BLOCKS, row)[0] == ("<user>ab<assistant>", False)
    typed = "{% for p in messages[0].content %}{{ p.type }}{% endfor %}{% generation %}x{% endgeneration %}"
    assert parts(tmp_path, typed, {"messages": [say("user", pieces), say("assistant", pieces)]})[0][0] == "texttext"


@pytest.mark.parametrize("content", [None, 5, [], [{"type": "image", "url": "x"}]])
def test_a_message_without_text_or_calls_is_refused(tmp_path, content):
    with pytest.raises(DataError, match="line 1: messages is not a list of objects"):
        parts(tmp_path, BLOCKS, {"messages": [say("user", content), say("assistant", "c")]})


@pytest.mark.parametrize(
    ("settings", "files", "expected", "others"),
    [
        ({"chat_template": "x"}, {}, ("x", "tokenizer_config.json"), []),
        ({"chat_template": [{"name": "rag", "template": "r"}]}, {}, ("r", "tokenizer_config.json"), []),
        (
            {"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]},
            {},
            ("d", "tokenizer_config.json"),
            ["tool_use"],
        ),
        ({"chat_template": "x"}, {"chat_template.jinja": "y"}, ("y", "chat_template.jinja"), []),
        (
            {},
            {"chat_template.jinja": "y", "additional_chat_templates/rag.jinja": "z"},
            ("y", "chat_template.jinja"),
            ["rag"],
        ),
        ({}, {"additional_chat_templates/rag.jinja": "z"}, ("z", "rag.jinja"), []),
        (
            {},
            {"additional_chat_templates/rag.jinja": "z", "additional_chat_templates/a.jinja": "z"},
            None,
            ["a", "rag"],
        ),
    ],
)
def test_named_templates_and_those_in_files_are_read(tmp_path, settings, files, expected, others):
    folder = shutil.copytree(LLAMA, tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text()) | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "additional_chat_templates").mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    found = tokenizer_files.read(folder).chat_template
    assert (found and (found, found.path.rpartition("/")[2])) == expected
    notes = open_weights(Place("hf", str(folder))).notes
    assert len(notes) == bool(others)
    assert all(name in notes[0] for name in others)


def test_a_template_behind_a_link_out_of_the_folder_is_refused(tmp_path):
    folder = shutil.copytree(LLAMA, tmp_path / "model")
    (tmp_path / "secret").write_text("x")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/rag.jinja").symlink_to(tmp_path / "secret")
    with pytest.raises(FormatError, match=r"rag\.jinja"):
        tokenizer_files.read(folder)


def test_an_error_names_the_file_of_the_template(tmp_path):
    folder = shutil.copytree(LLAMA, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(completions.TemplateError, match=r"chat_template\.jinja: the chat template is not one of Jinja"):
        completions.Template(tokenizer_files.read(folder))
    (folder / "chat_template.jinja").write_text("{{ messages[7].content.x }}")
    template = completions.Template(tokenizer_files.read(folder))
    with pytest.raises(DataError, match=r"chat_template\.jinja: the chat template can't make a text of the messages"):
        template([say("user", "a")], True)
