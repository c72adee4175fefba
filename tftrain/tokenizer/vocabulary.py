"""Vocabularies: the tokens in the order of their ids, the special tokens and the word starts."""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tftrain.files.errors import DataError, MissingFileError
from tftrain.files.reading import read_small
from tftrain.host.text import reason

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The one special token of a byte-level BPE vocabulary for a decoder; one for an encoder has SPECIAL_TOKENS.
END_OF_TEXT = "<|endoftext|>"
# What ends a document in vocabularies that others made: GPT-2's and Qwen's, Llama 3's, Mistral's.
END_TOKENS = (END_OF_TEXT, "<|end_of_text|>", "</s>")
SENTENCEPIECE_SPACE = "\u2581"
BYTE_OF_SPACE = "\u0120"  # a space in a token of bytes
MAX_BYTES = 32 << 20
MAX_TOKENS = 1 << 20
# Bytes of UTF-8. tensorflow-text refuses longer tokens.
LONGEST_TOKEN = 256
UNUSED_PREFIX = "[unused"
_IMPOSSIBLE = re.compile(r"[\x00\r\n]")


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of a tokenizer."""

    tokens: tuple[str, ...]  # by id, including the special tokens
    # "wordpiece" (a piece inside a word has the prefix "##"), "sentencepiece" (the first piece of a word has the prefix
    # U+2581) or "bpe" (a token is a sequence of bytes, each written as one character).
    tokenizer_type: str

    def __len__(self) -> int:
        return len(self.tokens)

    def id(self, token: str) -> int:
        """Returns a token's id."""
        return self.tokens.index(token)

    @cached_property
    def end_id(self) -> int:
        """Id of the token after each document of a causal data set: one of END_TOKENS, or [SEP] where there is none."""
        return self.id(end_token(self.tokens) or "[SEP]")

    @property
    def is_for_encoders(self) -> bool:
        """Whether it has [CLS], [SEP], [MASK] and the other SPECIAL_TOKENS."""
        return self.tokenizer_type != "bpe" or set(SPECIAL_TOKENS) <= set(self.tokens)

    @property
    def unknown_id(self) -> int | None:
        """Id of [UNK]; None if every text has tokens."""
        return None if self.tokenizer_type == "bpe" else self.id("[UNK]")

    def decode(self, ids: Sequence[int]) -> str:
        """Returns token ids as text. WordPiece loses the spaces around punctuation marks."""
        tokens = [self.tokens[number] for number in ids]
        if self.tokenizer_type == "bpe":
            return decode_bytes(tokens)
        if self.tokenizer_type == "sentencepiece":
            return "".join(tokens).replace(SENTENCEPIECE_SPACE, " ").strip()
        return " ".join(tokens).replace(" ##", "")

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of [PAD], [UNK], [CLS], [SEP] and [MASK]."""
        return tuple(self.id(token) for token in SPECIAL_TOKENS)

    @cached_property
    def word_starts(self) -> np.ndarray:
        """Which tokens begin a word: bool [vocab_size]; of bytes also those that begin with white space or a sign."""
        begins = {
            "wordpiece": lambda token: not token.startswith("##"),
            "sentencepiece": lambda token: token.startswith(SENTENCEPIECE_SPACE),
            # In that alphabet, "Ā" to BYTE_OF_SPACE stand for the bytes 0 to 32.
            "bpe": lambda token: "Ā" <= token[:1] <= BYTE_OF_SPACE or token[:1] in string.punctuation,
        }[self.tokenizer_type]
        starts = np.array([begins(token) for token in self.tokens])
        starts[list(self.special_ids)] = True
        return starts

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """int32 ids of all tokens except special and unused ones. Masking draws random replacements from them."""
        is_ordinary = [token not in SPECIAL_TOKENS and not token.startswith(UNUSED_PREFIX) for token in self.tokens]
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


def read_vocabulary(path: str, tokenizer_type: str) -> Vocabulary:
    """Reads a vocabulary: a UTF-8 text file with one token a line, in the format of BERT's vocab.txt.

    Raises:
        DataError: the file cannot be read, or `check_tokens` refuses its tokens.
    """
    lines = read_text(path, "expected a vocabulary, one token a line").split("\n")
    tokens = tuple(line.removesuffix("\r") for line in lines)
    tokens = tokens[:-1] if tokens[-1] == "" else tokens
    check_tokens(tokens, path, tokenizer_type)
    return Vocabulary(tokens, tokenizer_type)


def end_token(tokens: tuple[str, ...]) -> str | None:
    """Returns the one of END_TOKENS that a vocabulary has."""
    return next((token for token in END_TOKENS if token in tokens), None)


def check_tokens(tokens: tuple[str, ...], path: str, tokenizer_type: str) -> None:
    """Checks that tokens are a valid vocabulary. Token n is on line n + 1 of the file `path`, for the error message.

    Raises:
        DataError: a special token is missing, there is no ordinary token, [PAD] is not the first token (unless it is a
            "bpe"), a token occurs twice, there are too many tokens, or a token is too long or contains a line break or
            NUL.
    """
    if len(tokens) > MAX_TOKENS:
        raise DataError(f"{path}: it has {len(tokens)} tokens; expected a vocabulary of at most {MAX_TOKENS}")
    for line, token in enumerate(tokens, 1):
        if len(token.encode()) > LONGEST_TOKEN or _IMPOSSIBLE.search(token):
            raise DataError(
                f"{path}: line {line}: a token of {len(token.encode())} bytes that begins {token[:20]!r}; expected at "
                f"most {LONGEST_TOKEN}, and no line break or NUL among them"
            )
    is_for_decoders = tokenizer_type == "bpe" and not set(SPECIAL_TOKENS) <= set(tokens)
    if is_for_decoders and not end_token(tokens):
        raise DataError(
            f"{path}: the vocabulary lacks {END_OF_TEXT}; expected one of {' '.join(END_TOKENS)} among its "
            f"{len(tokens)} tokens"
        )
    special = () if is_for_decoders else SPECIAL_TOKENS
    if missing := [token for token in special if token not in tokens]:
        raise DataError(
            f"{path}: the vocabulary lacks {' '.join(missing)}; expected {' '.join(special)} among "
            f"its {len(tokens)} {'tokens' if tokenizer_type == 'bpe' else 'lines'}"
        )
    if tokenizer_type != "bpe" and tokens[0] != SPECIAL_TOKENS[0]:
        raise DataError(f"{path}: line 1 is {tokens[0]!r}; expected [PAD] there, as padding has the id 0")
    if len(set(tokens)) != len(tokens):
        seen: set[str] = set()
        line, token = next((n, t) for n, t in enumerate(tokens, 1) if t in seen or seen.add(t))
        raise DataError(f"{path}: line {line}: the token {token!r} occurs for the second time")
    if all(token in special or token.startswith(UNUSED_PREFIX) for token in tokens):
        raise DataError(f"{path}: the vocabulary holds nothing but the special tokens and unused ones")


def write_vocabulary(path: str, vocabulary: Vocabulary) -> None:
    """Writes a vocabulary file with one token a line."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(token + "\n" for token in vocabulary.tokens)


def decode_bytes(tokens: Sequence[str]) -> str:
    """Returns the text of byte-level tokens as they are in a vocabulary."""
    from tokenizers import decoders

    return decoders.ByteLevel().decode(list(tokens))
