"""A chat template has what transformers gives it; generation blocks decide what is learned; messages have one form."""

import datetime
import json
import shutil

import pytest

from tests.tasks.test_completion import LLAMA, TEMPLATE, say
from tftrain.config.convert import Place
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.data.table_rows import Row
from tftrain.files.errors import DataError, FormatError
from tftrain.finetune import completions, messages
from tftrain.formats.registry import open_weights
from tftrain.tokenizer import tokenizer_files

BLOCKS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
CHAT = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]


def with_template(text):
    return tokenizer_files.read(LLAMA)._replace(chat_template=text)


def read(tmp_path, template, *rows, **settings):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return completions.read_examples(str(path), FineTuningConfig(**settings), with_template(template))


def parts(tmp_path, template, row):
    """The texts of a row of JSONL, each with whether it is learned."""
    (example,) = read(tmp_path, template, row)
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
        ("{% for m in messages %}{% continue %}{% break %}{% endfor %}.", "."),
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
    prompts = json.dumps(tools) + "<user>a<assistant>", "<tool>1<assistant>"
    assert found == [(prompts[0], False), ("f", True), (prompts[1], False), ("b", True)]


def test_parts_of_text_are_one_text_unless_the_template_asks_for_types(tmp_path):
    pieces = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    row = {"messages": [say("user", pieces), say("assistant", "c")]}
    assert parts(tmp_path, BLOCKS, row)[0] == ("<user>ab<assistant>", False)
    typed = "{% for p in messages[0].content %}{{ p.type }}{% endfor %}{% generation %}x{% endgeneration %}"
    assert parts(tmp_path, typed, {"messages": [say("user", pieces), say("assistant", pieces)]})[0][0] == "texttext"


MORE = "additional_chat_templates"
NAMED = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]


@pytest.mark.parametrize(
    ("settings", "files", "expected", "others"),
    [
        ({"chat_template": "x"}, {}, ("x", "tokenizer_config.json"), []),
        ({"chat_template": [{"name": "rag", "template": "r"}]}, {}, ("r", "tokenizer_config.json"), []),
        ({"chat_template": NAMED}, {}, ("d", "tokenizer_config.json"), ["tool_use"]),
        ({"chat_template": "x"}, {"chat_template.jinja": "y"}, ("y", "chat_template.jinja"), []),
        ({}, {"chat_template.jinja": "y", f"{MORE}/rag.jinja": "z"}, ("y", "chat_template.jinja"), ["rag"]),
        ({}, {f"{MORE}/rag.jinja": "z"}, ("z", "rag.jinja"), []),
        ({}, {f"{MORE}/rag.jinja": "z", f"{MORE}/a.jinja": "z"}, None, ["a", "rag"]),
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


MADE_CALLS = {"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}
TEXT, BOTH = {"type": "text", "text": "a"}, ["prompt", "completion"]
PLAIN = [say("user", "a"), say("assistant", "b")]


@pytest.mark.parametrize(
    ("row", "columns", "expected"),
    [
        ({"messages": PLAIN}, ["messages"], PLAIN),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, ["conversations"], PLAIN),
        ({"messages": PLAIN, "system": "s"}, ["messages"], [say("system", "s"), *PLAIN]),
        ({"m": [say("user", [TEXT, TEXT])]}, ["m"], [say("user", "aa")]),
        ({"m": [say("assistant", None) | MADE_CALLS]}, ["m"], [say("assistant", "") | MADE_CALLS]),
        ({"m": [{"role": "assistant"} | MADE_CALLS]}, ["m"], [say("assistant", "") | MADE_CALLS]),
        ({"prompt": PLAIN, "completion": PLAIN[1:]}, BOTH, [*({**m, "weight": 0} for m in PLAIN), PLAIN[1]]),
        ({"prompt": PLAIN[:1], "completion": "b"}, BOTH, [{**PLAIN[0], "weight": 0}, PLAIN[1]]),
    ],
)
def test_messages_have_one_form(row, columns, expected):
    assert messages.read(Row("x", row), columns) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([say("user", 5)], "message 1 has the content 5; expected a text"),
        ([say("user", None)], "message 1 has the content None"),
        ([*PLAIN, say("user", [{"type": "image", "url": "x"}])], r"message 3, content\[0\] is {'type': 'image'"),
        ([{"from": "alien", "value": "a"}], "message 1 has the role 'alien'; expected one of human, gpt"),
        ([{"role": None, "content": "a"}], "message 1 has the role None"),
        (["a"], "message 1 is 'a'"),
        ("a", "m is not a list of objects with the strings role and content: 'a'"),
    ],
)
def test_a_message_that_is_none_is_named(value, message):
    with pytest.raises(DataError, match=message):
        messages.read(Row("x", {"m": value}), ["m"])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": [*PLAIN, say("assistant", "") | {"tool_calls": [{"f": 1}]}]}, "tool_calls would not be read"),
        ({"messages": PLAIN, "tools": [{}]}, "tools would not be read"),
        ({"instruction": "a", "input": "b", "output": "c"}, "input would not be read, only instruction and output"),
        ({"instruction": "a", "context": "b", "response": "c"}, "context would not be read.*text_column=instruc"),
    ],
)
def test_what_would_not_be_read_is_refused_instead_of_ignored(tmp_path, row, message):
    with pytest.raises(DataError, match=f"line 1: {message}"):
        read(tmp_path, TEMPLATE, row)


def test_prompts_and_completions_may_be_messages_and_a_bad_row_left_out(tmp_path):
    rows = {"prompt": PLAIN[:1], "completion": PLAIN[1:]}, {"prompt": PLAIN[:1], "completion": 5}
    (example,) = read(tmp_path, TEMPLATE, *rows, skip_bad_rows=True)
    assert (example.prompt, example.completion) == ("<user>a<|endoftext|>\n<assistant>", "b<|endoftext|>\n")
    with pytest.raises(DataError, match="line 2: completion is not a list of objects"):
        read(tmp_path, TEMPLATE, *rows)


def test_a_text_beside_the_prompt_in_a_later_row_is_refused(tmp_path):
    rows = {"instruction": "a", "output": "c"}, {"instruction": "a", "input": "", "output": "c"}
    assert len(read(tmp_path, None, *rows)) == 2
    with pytest.raises(DataError, match="line 3: input would not be read"):
        read(tmp_path, None, *rows, {"instruction": "a", "input": "b", "output": "c"})
