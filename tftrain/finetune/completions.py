"""Prompts with their completions, and chats: what a decoder reads and learns of them, packed into rows.

A chat is a list of messages. A Jinja template makes one text of them, as in transformers. The model learns what each
message of the assistant adds to the text of the messages before it, or what is in the template's `generation` blocks.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.data.table_rows import Row
from tftrain.files import strict_json
from tftrain.files.errors import DataError
from tftrain.finetune import chat_template, messages
from tftrain.finetune.tables import FileNotes, column_of, columns_of, read_table, text_of, usable
from tftrain.prepare.packing import pack
from tftrain.tokenizer.tokenizer_model import Tokenizer

_PROMPT, _COMPLETION = ("prompt", "instruction", "text"), ("completion", "response", "output")
_BESIDE_PROMPT = ("input", "context")  # what the prompts of Alpaca and Dolly are about
_GIVEN = ("tools", "documents")  # columns that a template may read beside messages
_CALLS = ("tool_calls", "function_call")  # fields of a message that calls tools
_BLOCK = re.compile(r"\{%[-+]?\s*generation\b")
_MOST_IN_A_ROW = 64
_PROBE = "an-answer-0"


Messages = Sequence[Mapping[str, Any]]


class Example(NamedTuple):
    """A prompt with its completion, or a chat."""

    number: int  # in its file, from 0
    place: str  # file and line, for messages
    parts: tuple[tuple[str, bool], ...]  # texts that follow each other, each with whether the model learns it
    is_chat: bool  # whether special tokens that the texts spell are tokens, and nothing ends the last text
    is_cut: bool = False  # whether its end does not fit

    @property
    def completion(self) -> str:
        """The last text that the model learns."""
        return next(text for text, is_learned in reversed(self.parts) if is_learned)

    @property
    def prompt(self) -> str:
        """The texts before the completion."""
        last = max(place for place, (_, is_learned) in enumerate(self.parts) if is_learned)
        return "".join(text for text, _ in self.parts[:last])


class Encoded(NamedTuple):
    """An example in tokens."""

    ids: np.ndarray  # int32 [n + 1]
    is_learned: np.ndarray  # bool [n + 1], which of them the model learns


def read_examples(
    path: str, settings: FineTuningConfig, tokenizer: Tokenizer, notes: FileNotes | None = None
) -> list[Example]:
    """Reads a table with prompts and completions, or JSON with messages, for which the tokenizer has a template.

    For `notes`, see `tables.usable`. Raises a DataError if the file can't be read, or if an example is damaged; the
    message names the line.
    """
    rows = read_table(path, settings.header, settings.skip_bad_rows, notes)
    columns = columns_of(rows)
    chat = next((name for name in messages.COLUMNS if name in columns and not settings.text_column), None)
    names = [chat] if chat else [column_of(rows, settings.text_column, _PROMPT, "text_column")]
    is_chat = bool(chat) or any(isinstance(row.values.get(names[0]), list) for row in rows)
    if not is_chat or (any(name in columns for name in (settings.label_column, *_COMPLETION)) and not chat):
        names.append(column_of(rows, settings.label_column, _COMPLETION, "label_column"))
    if is_chat:
        if not tokenizer.chat_template:
            raise DataError(f"{rows[0].place}: the tokenizer has no chat template; name a file with --chat_template")
        compiled = Template(tokenizer)
        with contextlib.suppress(DataError):  # A template may refuse these messages and take those of the file.
            if not end_of_answer(compiled) and notes is not None:
                notes.warning("the chat template writes nothing after an answer; the model learns no end of answers")
    elif not settings.text_column:
        for name, row in ((name, row) for row in rows for name in _BESIDE_PROMPT if row.values.get(name)):
            remedy = f"write its text into {names[0]}, or give --text_column={names[0]} to leave it out"
            raise DataError(f"{row.place}: {name} would not be read, only {' and '.join(names)}; {remedy}")

    def example(row: Row) -> Example:
        if is_chat:
            parts = _turns(row, messages.read(row, names, bool(re.search(r"\btype\b", compiled.text))), compiled)
        else:
            parts = tuple((text_of(row, name), name == names[1]) for name in names)
        return Example(0, row.place, parts, is_chat)

    examples = usable(path, example, rows, settings.skip_bad_rows, notes)
    return [each._replace(number=number) for number, each in enumerate(examples)]


class Template:
    """A tokenizer's Jinja template with what transformers gives it, see `chat_template`."""

    def __init__(self, tokenizer: Tokenizer):
        """Compiles the template; raises TemplateError if it is none."""
        self.text, self._tokens = tokenizer.chat_template, tokenizer.named_tokens
        path = getattr(tokenizer.chat_template, "path", "")
        name = f"{path}: the chat template" if path else "the chat template"
        try:
            self._renderer = chat_template.Renderer(tokenizer.chat_template, name=name)
        except DataError as error:
            raise TemplateError(str(error)) from error

    def __call__(self, messages: Messages, begins_answer: bool, **given: Any) -> str:
        """Returns the text of messages; it may end where the assistant's next message begins."""
        return self.generated(messages, begins_answer, **given)[0]

    def generated(self, messages: Messages, begins_answer: bool, **given: Any) -> tuple[str, list[list[int]]]:
        """Returns the text, and the ranges of it that are in `generation` blocks; raises DataError if it can't."""
        values = {"tools": None, "documents": None, "messages": messages, "add_generation_prompt": begins_answer}
        return self._renderer.generated(values | given | self._tokens)


class TemplateError(DataError):
    """A chat template is not one of Jinja."""


def question(text: str, template: Template) -> str:
    """Returns a user's message as a text that ends where the assistant's answer begins."""
    return template([{"role": "user", "content": text}], True)


def end_of_answer(template: Template) -> str:
    """Returns what a template writes after the assistant's message; stripped, unless it is only spaces."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _PROBE}]
    end = template(messages, False).rpartition(_PROBE)[2]
    return end.strip() or end


def _turns(row: Row, messages: Messages, template: Template) -> tuple[tuple[str, bool], ...]:
    """Returns the texts of a chat, each with whether the model learns it."""
    given = {name: row.values[name] for name in _GIVEN if row.values.get(name)}
    calls = [name for name in _CALLS if any(each.get(name) for each in messages)]
    try:
        for name in [*given, *calls]:
            if not re.search(rf"\b{name}\b", template.text):
                raise DataError(f"{name} would not be read by the chat template; write them into a message")
        for name, value in given.items():
            given[name] = strict_json.parse(value) if isinstance(value, str) else value
        parts = (_generated if _BLOCK.search(template.text) else _answers)(messages, template, given)
    except (DataError, ValueError) as error:
        raise DataError(f"{row.place}: {error}") from error
    if not any(is_learned for _, is_learned in parts):
        raise DataError(f"{row.place}: no message of the assistant without weight 0, so there is nothing to learn")
    return tuple(parts)


def _generated(messages: Messages, template: Template, given: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Returns the parts of a text by the template's `generation` blocks."""
    text, ranges = template.generated(messages, False, **given)
    weights = [_is_learned(each) for each in messages if each["role"] == "assistant"]
    if not all(weights) and len(weights) != len(ranges):
        raise DataError(
            f"the template has {len(ranges)} generation blocks for {len(weights)} messages of the assistant; remove "
            "weight, which says which messages are learned"
        )
    learned = weights if len(weights) == len(ranges) else [True] * len(ranges)
    parts, written = [], 0
    for (begin, end), is_learned in zip(ranges, learned, strict=True):
        parts += [(text[written:begin], False), (text[begin:end], is_learned)]
        written = end
    return [*parts, (text[written:], False)]


def _answers(messages: Messages, template: Template, given: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Returns the parts of a text by what each message of the assistant adds to it."""
    parts, written = [], ""
    for end, message in enumerate(messages, start=1):
        if message["role"] != "assistant":
            continue
        before, after = template(messages[: end - 1], True, **given), template(messages[:end], False, **given)
        if not (before.startswith(written) and after.startswith(before)):
            raise DataError(
                "the template changes the text of earlier messages when another one follows, or its prompt for an "
                "answer is not the beginning of one; give each answer of the assistant a line of its own, with the "
                "messages before it"
            )
        parts += [(before[len(written) :], False), (after[len(before) :], _is_learned(message))]
        written = after
    return parts


def _is_learned(message: Mapping[str, Any]) -> bool:
    weight = message.get("weight")  # as OpenAI's files have it
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        raise DataError(f"weight of a message is {strict_json.shown(weight)}; expected 0, which is not learned, or 1")
    return weight != 0


def encode(examples: Sequence[Example], tokenizer: Tokenizer) -> list[Encoded]:
    """Returns the tokens of examples; an end token, which is learned, follows a completion.

    The tokenizer's `begin_ids` stand before a prompt; they are not learned.
    """
    tokenize = tokenizer.build(with_special_tokens=bool(examples) and examples[0].is_chat)
    pieces = iter(tokenize([text for example in examples for text, _ in example.parts]))
    begin, end, encoded = tokenizer.begin_ids, np.array([tokenizer.vocabulary.end_id], np.int32), []
    for example in examples:
        parts = [(next(pieces), is_learned) for _, is_learned in example.parts]
        if not example.is_chat:
            # A prompt without tokens begins as a document does.
            first = begin if len(begin) + len(parts[0][0]) else end
            parts = [(first, False), *parts, (end, True)]
        ids = np.concatenate([part for part, _ in parts])
        encoded.append(Encoded(ids, np.repeat([learned for _, learned in parts], [len(part) for part, _ in parts])))
    return encoded


class CompletionRows:
    """Examples of at most `length` inputs, packed several in a row.

    Attributes:
        examples: those of each row, each with the positions of its completion's labels, int64 [n].
        features: input_ids, input_mask, sequence_ids, position_ids and labels, int32 [rows, S] each.
        cut: number of examples whose end does not fit.
        left_out: number of examples that are left out, because nothing of their completion fits.
    """

    def __init__(self, examples: Sequence[Example], encoded: Sequence[Encoded], length: int):
        kept = [number for number, each in enumerate(encoded) if each.is_learned[1 : length + 1].any()]
        self.left_out = len(encoded) - len(kept)
        self.cut = sum(len(encoded[number].ids) > length + 1 for number in kept)
        if not kept:
            raise DataError(f"no completion begins in the first {length} tokens (--max_seq_length) of its example")
        sizes = np.array([min(len(encoded[number].ids) - 1, length) for number in kept])
        rows = pack(sizes, length, _MOST_IN_A_ROW)
        names = ("input_ids", "input_mask", "sequence_ids", "position_ids", "labels")
        self.features = {name: np.zeros([len(rows), length], np.int32) for name in names}
        self.features["labels"] -= 1
        self.examples: list[list[tuple[Example, np.ndarray]]] = []
        for number, row in enumerate(rows):
            self.examples.append([])
            begin = 0
            for position, chosen in enumerate(row[row >= 0].tolist()):
                example, (ids, is_learned) = kept[chosen], encoded[kept[chosen]]
                part = slice(begin, begin + sizes[chosen])
                labels = np.where(is_learned[1:], ids[1:], -1)[: sizes[chosen]]
                values = (ids[: sizes[chosen]], 1, position + 1, np.arange(sizes[chosen]), labels)
                for name, value in zip(names, values, strict=True):
                    self.features[name][number, part] = value
                whole = examples[example]._replace(is_cut=len(ids) > length + 1)
                self.examples[-1].append((whole, begin + np.flatnonzero(labels >= 0)))
                begin += sizes[chosen]
