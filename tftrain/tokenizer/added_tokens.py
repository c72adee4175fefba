"""Tokens that were added to a WordPiece vocabulary: their files, and the tokenizer that finds them in a text.

transformers keeps them in tokenizer.json, tokenizer_config.json or added_tokens.json beside vocab.txt. The library
`tokenizers` looks for them before a text is divided into words. So a tokenizer with such tokens is one of that library,
in its format; one without them needs none.
"""

import itertools
import json
from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, decoders, processors

from tftrain.files import strict_json
from tftrain.files.errors import DataError
from tftrain.tokenizer.pipelines import word_pieces
from tftrain.tokenizer.roles import SETTINGS, read_object
from tftrain.tokenizer.vocabulary import Vocabulary, check_tokens

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_SPECIAL = {"special": True}
_MORE = ("additional_special_tokens", "extra_special_tokens")  # fields with tokens whose ids follow


def with_added(
    vocabulary: Vocabulary, folder: str, lower_case: bool, strip_accents: bool | None
) -> tuple[Vocabulary, bytes | None]:
    """Returns a vocabulary with the tokens that the files in a folder add, and the tokenizer in the library's format.

    The second is None if they add nothing to the vocabulary and its special tokens. Raises a DataError if a file is
    damaged, or an id is not that of its token or leaves out a number.
    """
    found: dict[str, dict[str, Any]] = {}
    roles, special = vocabulary.roles, {vocabulary.tokens[number] for number in vocabulary.roles.special}
    for entry in _entries(folder):
        if entry["content"] not in special:
            found.setdefault(entry["content"], {"id": None} | entry)
    if not found:
        return vocabulary, None
    tokens = base = _pieces_in(folder, vocabulary.tokens)
    for content, entry in sorted(found.items(), key=lambda item: (item[1]["id"] is None, item[1]["id"])):
        number = tokens.index(content) if content in tokens else len(tokens)
        if entry["id"] not in (None, number):
            raise DataError(f"{folder}: the added token {content!r} has the id {entry['id']}; expected {number}")
        tokens += (content,) * (number == len(tokens))
    check_tokens(tokens, folder, vocabulary.tokenizer_type, roles)
    flags = {content: {name: entry.get(name, False) for name in _FLAGS} for content, entry in found.items()}
    tokenizer = word_pieces(base, lower_case, strip_accents, vocabulary.of_role("unknown"))
    first, last = ((base[number], number) for number in (roles.beginning, roles.separator))
    tokenizer.post_processor, tokenizer.decoder = processors.BertProcessing(last, first), decoders.WordPiece()
    tokenizer.add_special_tokens(sorted(special, key=tokens.index))
    for content in sorted(flags, key=tokens.index):  # One by one, so that the ids are those of the order.
        token = AddedToken(content, **flags[content])
        tokenizer.add_special_tokens([token]) if flags[content]["special"] else tokenizer.add_tokens([token])
    return Vocabulary(tokens, vocabulary.tokenizer_type, roles), tokenizer.to_str().encode()


def pieces_of(model: bytes) -> list[str]:
    """Returns the tokens of the vocabulary without the added ones, given the tokenizer in the library's format."""
    ids = json.loads(model)["model"]["vocab"]
    return sorted(ids, key=ids.__getitem__)


def settings_of(model: bytes) -> dict[str, dict[str, Any]]:
    """Returns the added tokens by id, as tokenizer_config.json has them."""
    added = json.loads(model)["added_tokens"]
    return {str(each["id"]): {name: each[name] for name in ("content", *_FLAGS)} for each in added}


def _pieces_in(folder: str, tokens: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the tokens that WordPiece itself has, of a vocab.txt that may have the added ones too."""
    model = read_object(folder, "tokenizer.json").get("model")
    ids = model.get("vocab") if isinstance(model, dict) else None
    first = tokens[: len(ids)] if isinstance(ids, dict) else ()
    return first if first and ids == {token: number for number, token in enumerate(first)} else tokens


def _entries(folder: str) -> Iterable[dict[str, Any]]:
    """Yields the content of added tokens with what the files say of it; what comes first counts."""
    files = ("tokenizer.json", SETTINGS, "special_tokens_map.json", "added_tokens.json")
    library, settings, more, ids = (read_object(folder, name) for name in files)
    try:
        is_other = (library.get("model") or {}).get("type", "WordPiece") != "WordPiece"  # another vocabulary beside
        entries = [[] if is_other else library.get("added_tokens") or []]
        decoder = settings.get("added_tokens_decoder") or {}
        entries.append([{**each, "id": int(number)} for number, each in decoder.items()])
        for value in [fields.get(name) for fields in (settings, more) for name in _MORE]:
            tokens = value.values() if isinstance(value, dict) else value or []
            entries.append(
                [{"content": each} | _SPECIAL if isinstance(each, str) else each | _SPECIAL for each in tokens]
            )
        # These have no flags, and then transformers compares normalized text.
        entries.append([{"content": content, "id": number, "normalized": True} for content, number in ids.items()])
        for entry in itertools.chain.from_iterable(entries):
            content, number = entry["content"], entry.get("id", 0)
            if not isinstance(content, str) or not content or type(number) is not int:
                raise ValueError(strict_json.shown(entry))
            yield {name: value for name, value in entry.items() if name in ("content", "id") or value is True}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: an added token is damaged ({error}); expected a text with its id") from error
