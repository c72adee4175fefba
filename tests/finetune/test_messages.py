"""Chats as data sets of the hub have them, in one form."""

import json

import pytest

from tests.tasks.test_completion import LLAMA, TEMPLATE, say
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.data.table_rows import Row
from tftrain.files.errors import DataError
from tftrain.finetune import completions, messages
from tftrain.tokenizer import tokenizer_files

CALLS = {"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}
TEXT, BOTH = {"type": "text", "text": "a"}, ["prompt", "completion"]
PLAIN = [say("user", "a"), say("assistant", "b")]


@pytest.mark.parametrize(
    ("row", "columns", "expected"),
    [
        ({"messages": PLAIN}, ["messages"], PLAIN),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, ["conversations"], PLAIN),
        ({"messages": PLAIN, "system": "s"}, ["messages"], [say("system", "s"), *PLAIN]),
        ({"m": [say("user", [TEXT, TEXT])]}, ["m"], [say("user", "aa")]),
        ({"m": [say("assistant", None) | CALLS]}, ["m"], [say("assistant", "") | CALLS]),
        ({"m": [{"role": "assistant"} | CALLS]}, ["m"], [say("assistant", "") | CALLS]),
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


def read(tmp_path, template, *rows, **settings):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = tokenizer_files.read(LLAMA)._replace(chat_template=template)
    return completions.read_examples(str(path), FineTuningConfig(**settings), own)


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
