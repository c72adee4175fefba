"""Roles of tokens: which id pads, is unknown, begins and separates texts, masks, and ends a document.

The files of a tokenizer assign them, and any id may have any role. Code asks for a role and knows no token's name; the
names here are for files that assign nothing, such as a vocab.txt alone.
"""

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from tftrain.files import strict_json
from tftrain.files.errors import DataError
from tftrain.files.reading import read_small
from tftrain.host.text import reason

MAX_BYTES = 64 << 20  # size of a file of a tokenizer
# Files that assign roles; a field of a later one counts. Prepared data has roles in its manifest.
SETTINGS, MANIFEST = "tokenizer_config.json", "manifest.json"
_MAP = "special_tokens_map.json"
# What ends a document in vocabularies of decoders: GPT-2's and Qwen's, Llama 3's, Llama 2's and Mistral's.
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>")
# By role: the fields of transformers' files, and the usual names, of BERT's kind and of RoBERTa's.
_NAMES = {
    "padding": (("pad_token",), ("[PAD]", "<pad>")),
    "unknown": (("unk_token",), ("[UNK]", "<unk>")),
    "beginning": (("cls_token", "bos_token"), ("[CLS]", "<s>")),
    "separator": (("sep_token", "eos_token"), ("[SEP]", "</s>")),
    "mask": (("mask_token",), ("[MASK]", "<mask>")),
}
ROLES = tuple(_NAMES)
_OF_ROBERTA = "<s>"  # Encoders whose texts begin with it have two separators between texts, and one token type.


class Roles(NamedTuple):
    """The id of each role; None if no token has it. An encoder reads: beginning A separator(s) B separator."""

    padding: int | None = None
    unknown: int | None = None
    beginning: int | None = None
    separator: int | None = None
    mask: int | None = None
    end: int | None = None  # after a document or a completion
    separators: int = 1  # between two texts
    second_type: int = 1  # token type of the second text and the separator after it

    @property
    def special(self) -> tuple[int, ...]:
        """The ids of roles but the end of a document, each once: no text spells them."""
        return tuple(dict.fromkeys(each for each in self[: len(ROLES)] if each is not None))

    def around(self, texts: int) -> int:
        """Returns the number of tokens around one text or two."""
        return 2 + (texts - 1) * self.separators

    @property
    def lacking(self) -> list[str]:
        """The roles that an encoder needs and no token has."""
        return [name for name in ROLES if name != "unknown" and getattr(self, name) is None]


def of_tokens(tokens: Sequence[str], settings: Mapping[str, Any] | None = None) -> Roles:
    """Returns the roles that settings of transformers assign to tokens, and by their usual names those left out."""
    named = {name: content_of(value) for name, value in (settings or {}).items()}
    names = {role: [*map(named.get, fields), *usual] for role, (fields, usual) in _NAMES.items()}
    eos = named.get("eos_token")
    wanted = {eos, *END_TOKENS, *itertools.chain(*names.values())}
    places = {token: number for number, token in enumerate(tokens) if token in wanted}
    ids = {role: next((places[each] for each in own if each in places), None) for role, own in names.items()}
    end = next((places[each] for each in (*END_TOKENS, eos) if each in places), ids["separator"])
    is_roberta = ids["beginning"] is not None and tokens[ids["beginning"]] == _OF_ROBERTA
    return Roles(**ids, end=end, separators=1 + is_roberta, second_type=int(not is_roberta))


def of_template(roles: Roles, tokenizer: Tokenizer) -> Roles:
    """Returns roles with beginning and separator as the library puts them around two texts, if it does.

    Raises:
        ValueError: an encoder's texts have something else around them.
    """
    pair = tokenizer.encode("a", "a")
    places = [place for place, text in enumerate(pair.sequence_ids) if text is not None]
    if roles.mask is None or not places or len(places) == len(pair.ids):
        return roles
    first = [place for place in places if pair.sequence_ids[place] == 0]
    second = places[len(first)] if len(first) < len(places) else len(pair.ids)
    begin, between, end = pair.ids[: first[0]], pair.ids[first[-1] + 1 : second], pair.ids[places[-1] + 1 :]
    if len(begin) != 1 or len(end) != 1 or between not in (end, 2 * end):
        around = f"{begin} before a text, {between} between two and {end} after them"
        raise ValueError(f"it puts the tokens {around}; expected one, one or two equal ones, and that one again")
    if None in map(tokenizer.id_to_token, begin + end):
        raise ValueError(f"it puts the ids {begin} before a text and {end} after it; expected those of its tokens")
    types = {"separators": len(between), "second_type": pair.type_ids[second] if second < len(pair.ids) else 0}
    return roles._replace(beginning=begin[0], separator=end[0], **types)


def named(roles: Roles, tokens: Sequence[str]) -> dict[str, str]:
    """Returns the tokens of an encoder's roles by the names of transformers."""
    return {fields[0]: tokens[n] for role, (fields, _) in _NAMES.items() if (n := getattr(roles, role)) is not None}


def beside(folder: str, tokens: Sequence[str]) -> Roles:
    """Returns the roles that files in a folder assign to tokens.

    Raises:
        DataError: a file is damaged, or an encoder's role is named for a text that is no token.
    """
    recorded = read_object(folder, MANIFEST).get("roles")
    if recorded is not None:
        return of_record(recorded, len(tokens), os.path.join(folder, MANIFEST))
    settings = read_object(folder, _MAP) | read_object(folder, SETTINGS)
    roles, path = of_tokens(tokens, settings), os.path.join(folder, SETTINGS)
    for role, (fields, _) in _NAMES.items():
        named = {field: content_of(settings[field]) for field in fields if settings.get(field) is not None}
        for field in (field for field, token in named.items() if token is None):
            raise DataError(f"{path}: {field} is {strict_json.shown(settings[field])}; expected a token or null")
        number, shown = getattr(roles, role), " and ".join(f"{field} {token!r}" for field, token in named.items())
        # The role would have the token with the usual name.
        if any(named.values()) and number is not None and not roles.lacking and tokens[number] not in named.values():
            raise DataError(f"{path}: no token is the {shown}; expected one of the {len(tokens)} of the vocabulary")
    return roles


def of_record(recorded: Any, tokens: int, path: str) -> Roles:
    """Returns the roles in the manifest at a path; raises a DataError if they are not those of so many tokens."""
    try:
        roles = Roles(**recorded)
        good = all(each is None or (type(each) is int and 0 <= each < tokens) for each in roles)
    except TypeError:
        good = False
    if not good:
        raise DataError(f"{path}: roles is {strict_json.shown(recorded)}; expected ids below {tokens} by role")
    return roles


def read_object(folder: str, name: str) -> dict[str, Any]:
    """Returns the object in a file of a tokenizer; an empty one without the file."""
    path = os.path.join(folder, name)
    try:
        content = strict_json.parse(read_small(path, MAX_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {reason(error)}; expected JSON of a tokenizer") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a JSON object")
    return content


def content_of(value: Any) -> str | None:
    """Returns a token of a file, which is a string or an object with its flags."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None
