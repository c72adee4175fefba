"""Vocabularies: the tokens in the order of their ids, the special tokens and the word starts."""

import json
import os
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from tokenizers import decoders

from tftrain.files.errors import DataError, MissingFileError
from tftrain.files.reading import read_small
from tftrain.host.text import reason
from tftrain.tokenizer.roles import END_TOKENS, MAX_BYTES, ROLES, Roles, beside, of_tokens

# The special tokens of a vocabulary that is learned for an encoder, and of a byte-level BPE that is for a decoder.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
END_OF_TEXT = END_TOKENS[0]
# Those of LIBRARY are what a tokenizer.json of the library `tokenizers` says; "unigram" is one with such a model.
LIBRARY = ("unigram", "pipeline")
KINDS = ("wordpiece", "sentencepiece", "bpe", *LIBRARY)
SENTENCEPIECE_SPACE = "\u2581"
BYTE_OF_SPACE = "\u0120"  # a space in a token of bytes
MAX_TOKENS = 1 << 20
# Bytes of UTF-8. tensorflow-text refuses longer tokens.
LONGEST_TOKEN = 256
UNUSED_PREFIX = "[unused"
_IMPOSSIBLE, _QUOTED = re.compile(r"[\x00\r\n]"), re.compile('".*"')
_UNLIKE_A_LINE = re.compile(r'[\x00\r\n]|\A".*"\Z')
_INSIDE, _BYTES = "##", "bytes"


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of a tokenizer."""

    tokens: tuple[str, ...]  # by id, including the special tokens
    tokenizer_type: str  # one of KINDS; "bpe" is byte-level and gives every text back
    roles: Roles = None  # by default those that usual names have

    def __post_init__(self):
        if self.roles is None:
            object.__setattr__(self, "roles", of_tokens(self.tokens))

    def __len__(self) -> int:
        return len(self.tokens)

    def id(self, token: str) -> int:
        """Returns a token's id."""
        return self.tokens.index(token)

    @cached_property
    def spelling(self) -> str:
        """How tokens are written.

        "##": a piece inside a word has this prefix. U+2581: the first piece of a word has it. "bytes": each byte is one
        character.
        """
        usual = {"wordpiece": _INSIDE, "sentencepiece": SENTENCEPIECE_SPACE, "bpe": _BYTES}
        if self.tokenizer_type in usual:
            return usual[self.tokenizer_type]
        tokens, starts = set(self.tokens), {token[:2] for token in self.tokens}
        if any(token.startswith(SENTENCEPIECE_SPACE) for token in starts):
            return SENTENCEPIECE_SPACE
        return _BYTES if tokens.issuperset(byte_characters()) else _INSIDE

    @property
    def end_id(self) -> int:
        """Id of the token after each document of a causal data set, or the separator's where there is none."""
        return self.roles.end

    @property
    def padding_id(self) -> int:
        """Id of padding; a decoder's vocabulary without one is padded with 0, which nothing reads."""
        return self.roles.padding or 0

    @property
    def is_for_encoders(self) -> bool:
        """Whether tokens have all roles that an encoder needs."""
        return not self.roles.lacking

    @property
    def unknown_id(self) -> int | None:
        """Id of the token for what has no token; None if every text has tokens."""
        return None if self.spelling == _BYTES else self.roles.unknown

    def of_role(self, role: str) -> str:
        """Returns the token that has a role; "" if none has it."""
        number = getattr(self.roles, role)
        return "" if number is None else self.tokens[number]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns token ids as text. WordPiece loses the spaces around punctuation marks."""
        tokens = [self.tokens[number] for number in ids]
        if self.spelling == _BYTES:
            return decode_bytes(tokens)
        if self.spelling == SENTENCEPIECE_SPACE:  # A token such as <0x0A> is a byte.
            joined = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]).decode(tokens)
            return joined.replace(SENTENCEPIECE_SPACE, " ").strip()
        return " ".join(tokens).replace(" ##", "")

    @cached_property
    def word_starts(self) -> np.ndarray:
        """Which tokens begin a word: bool [vocab_size]; of bytes also those that begin with white space or a sign."""
        begins = {
            _INSIDE: lambda token: not token.startswith(_INSIDE),
            SENTENCEPIECE_SPACE: lambda token: token.startswith(SENTENCEPIECE_SPACE),
            # In that alphabet, "Ā" to BYTE_OF_SPACE stand for the bytes 0 to 32.
            _BYTES: lambda token: "Ā" <= token[:1] <= BYTE_OF_SPACE or token[:1] in string.punctuation,
        }[self.spelling]
        starts = np.array([begins(token) for token in self.tokens])
        starts[list(self.roles.special)] = True
        return starts

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """int32 ids of all tokens except special and unused ones. Masking draws random replacements from them."""
        is_ordinary = np.array([not token.startswith(UNUSED_PREFIX) for token in self.tokens])
        is_ordinary[list(self.roles.special)] = False
        return np.flatnonzero(is_ordinary).astype(np.int32)


def read_file(path: str, expected: str) -> bytes:
    """Returns the bytes of a file of a tokenizer that a flag names, or raises a DataError that ends with `expected`."""
    try:
        return read_small(path, MAX_BYTES)
    except OSError as error:
        kind = MissingFileError if isinstance(error, FileNotFoundError) else DataError
        raise kind(f"{path}: {reason(error)}; {expected}") from error


def read_text(path: str, expected: str) -> str:
    """Returns the text of a file in UTF-8; see `read_file`."""
    try:
        return read_file(path, expected).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start}: not UTF-8; {expected}") from error


def read_vocabulary(path: str, tokenizer_type: str, roles: Roles | None = None) -> Vocabulary:
    """Reads a vocabulary: a UTF-8 text file with one token a line, in the format of BERT's vocab.txt.

    Without roles, they are those that files beside it assign. Raises a DataError if the file can't be read, or
    `check_tokens` refuses its tokens.
    """
    lines = read_text(path, "expected a vocabulary, one token a line").split("\n")
    tokens = tuple(line.removesuffix("\r") for line in lines)
    tokens = tokens[:-1] if tokens[-1] == "" else tokens
    if tokenizer_type in LIBRARY:
        tokens = tuple(json.loads(token) if _QUOTED.fullmatch(token) else token for token in tokens)
    roles = roles or beside(os.path.dirname(path), tokens)
    check_tokens(tokens, path, tokenizer_type, roles)
    return Vocabulary(tokens, tokenizer_type, roles)


def check_tokens(tokens: tuple[str, ...], path: str, tokenizer_type: str, roles: Roles | None = None) -> None:
    """Checks that tokens are a valid vocabulary. Token n is on line n + 1 of the file `path`, for the error message.

    Raises a DataError if a role has no token, the mask has another role, there is no ordinary token, a token occurs
    twice, there are too many tokens, or a token is too long or contains a line break or NUL.
    """
    roles = roles or of_tokens(tokens)
    if len(tokens) > MAX_TOKENS:
        raise DataError(f"{path}: it has {len(tokens)} tokens; expected a vocabulary of at most {MAX_TOKENS}")
    for line, token in enumerate(() if tokenizer_type in LIBRARY else tokens, 1):
        if len(token.encode()) > LONGEST_TOKEN or _IMPOSSIBLE.search(token):
            raise DataError(
                f"{path}: line {line}: a token of {len(token.encode())} bytes that begins {token[:20]!r}; expected at "
                f"most {LONGEST_TOKEN}, and no line break or NUL among them"
            )
    is_for_decoders = tokenizer_type == "bpe" and roles.lacking
    if is_for_decoders and roles.end is None:
        raise DataError(
            f"{path}: the vocabulary lacks {END_OF_TEXT}; expected one of {' '.join(END_TOKENS)} among its "
            f"{len(tokens)} tokens"
        )
    usual, is_free = dict(zip(ROLES, SPECIAL_TOKENS, strict=True)), is_for_decoders or tokenizer_type in LIBRARY
    if missing := [] if is_free else [usual[role] for role in ROLES if getattr(roles, role) is None]:
        raise DataError(
            f"{path}: the vocabulary lacks {' '.join(missing)}; expected {' '.join(SPECIAL_TOKENS)} among "
            f"its {len(tokens)} {'tokens' if tokenizer_type == 'bpe' else 'lines'}, or tokens with their roles in "
            "tokenizer_config.json beside it"
        )
    if not roles.lacking and roles.mask in (roles.padding, roles.beginning, roles.separator):
        raise DataError(f"{path}: the mask {tokens[roles.mask]!r} has another role too; expected a token of its own")
    if len(set(tokens)) != len(tokens):
        seen: set[str] = set()
        line, token = next((n, t) for n, t in enumerate(tokens, 1) if t in seen or seen.add(t))
        raise DataError(f"{path}: line {line}: the token {token!r} occurs for the second time")
    special = {tokens[number] for number in roles.special}
    if all(token in special or token.startswith(UNUSED_PREFIX) for token in tokens):
        raise DataError(f"{path}: the vocabulary holds nothing but the special tokens and unused ones")


def write_vocabulary(path: str, vocabulary: Vocabulary) -> None:
    """Writes a vocabulary file with one token a line."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        # A tokenizer.json may have tokens with line breaks.
        unlike = _UNLIKE_A_LINE if vocabulary.tokenizer_type in LIBRARY else _IMPOSSIBLE
        file.writelines((json.dumps(each) if unlike.search(each) else each) + "\n" for each in vocabulary.tokens)


def decode_bytes(tokens: Sequence[str]) -> str:
    """Returns the text of byte-level tokens as they are in a vocabulary."""
    return decoders.ByteLevel().decode(list(tokens))


@cache
def byte_characters() -> tuple[str, ...]:
    """Returns the printable character of each byte in a byte-level vocabulary, as GPT-2's encoder.py has them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))
