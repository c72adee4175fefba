"""Vocabularies: the tokens in the order of their ids, the special tokens and the word starts."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tftrain.data.errors import DataError
from tftrain.files import read_small

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SENTENCEPIECE_SPACE = "\u2581"
MAX_BYTES = 32 << 20
MAX_TOKENS = 1 << 20
# Bytes of UTF-8. tensorflow-text refuses longer tokens.
LONGEST_TOKEN = 256
UNUSED_PREFIX = "[unused"
_IMPOSSIBLE = re.compile(r"[\x00\r\n]")


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of a WordPiece or a sentencepiece tokenizer.

    Attributes:
        tokens: the tokens by id, including the special tokens. [PAD] has id 0.
        tokenizer_type: "wordpiece" (a piece inside a word has the prefix "##") or "sentencepiece" (the first piece of a
            word has the prefix U+2581).
    """

    tokens: tuple[str, ...]
    tokenizer_type: str

    def __len__(self) -> int:
        return len(self.tokens)

    def id(self, token: str) -> int:
        """Returns a token's id."""
        return self.tokens.index(token)

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of [PAD], [UNK], [CLS], [SEP] and [MASK]."""
        return tuple(self.id(token) for token in SPECIAL_TOKENS)

    @cached_property
    def word_starts(self) -> np.ndarray:
        """Which tokens begin a word: bool [vocab_size]."""
        if self.tokenizer_type == "sentencepiece":
            starts = [token.startswith(SENTENCEPIECE_SPACE) for token in self.tokens]
        else:
            starts = [not token.startswith("##") for token in self.tokens]
        starts = np.array(starts)
        starts[list(self.special_ids)] = True
        return starts

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """int32 ids of all tokens except special and unused ones. Masking draws random replacements from them."""
        special = set(SPECIAL_TOKENS)
        return np.array(
            [
                number
                for number, token in enumerate(self.tokens)
                if token not in special and not token.startswith(UNUSED_PREFIX)
            ],
            np.int32,
        )


def read_vocabulary(path: str, tokenizer_type: str) -> Vocabulary:
    """Reads a vocabulary file with one token a line.

    Args:
        path: a UTF-8 text file in the format of BERT's vocab.txt.
        tokenizer_type: "wordpiece" or "sentencepiece".

    Raises:
        DataError: the file cannot be read, or `check_tokens` refuses its tokens.
    """
    try:
        lines = read_small(path, MAX_BYTES).decode("utf-8").split("\n")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; expected a vocabulary, one token a line") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start}: not UTF-8; expected a vocabulary, one token a line") from error
    tokens = tuple(line.removesuffix("\r") for line in lines)
    tokens = tokens[:-1] if tokens[-1] == "" else tokens
    check_tokens(tokens, path)
    return Vocabulary(tokens, tokenizer_type)


def check_tokens(tokens: tuple[str, ...], path: str) -> None:
    """Checks that tokens are a valid vocabulary.

    Args:
        tokens: the tokens by id.
        path: the file of the tokens, for the error message. Token n is on line n + 1.

    Raises:
        DataError: a special token is missing, there is no ordinary token, [PAD] is not the first token, a token occurs
            twice, there are too many tokens, or a token is too long or contains a line break or NUL.
    """
    if len(tokens) > MAX_TOKENS:
        raise DataError(f"{path}: it has {len(tokens)} tokens; expected a vocabulary of at most {MAX_TOKENS}")
    for line, token in enumerate(tokens, 1):
        if len(token.encode()) > LONGEST_TOKEN or _IMPOSSIBLE.search(token):
            raise DataError(
                f"{path}: line {line}: a token of {len(token.encode())} bytes that begins {token[:20]!r}; expected at "
                f"most {LONGEST_TOKEN}, and no line break or NUL among them"
            )
    missing = [token for token in SPECIAL_TOKENS if token not in tokens]
    if missing:
        raise DataError(
            f"{path}: the vocabulary lacks {' '.join(missing)}; expected {' '.join(SPECIAL_TOKENS)} among "
            f"its {len(tokens)} lines"
        )
    if tokens[0] != SPECIAL_TOKENS[0]:
        raise DataError(f"{path}: line 1 is {tokens[0]!r}; expected [PAD] there, as padding has the id 0")
    if len(set(tokens)) != len(tokens):
        seen: set[str] = set()
        line, token = next((n, t) for n, t in enumerate(tokens, 1) if t in seen or seen.add(t))
        raise DataError(f"{path}: line {line}: the token {token!r} occurs for the second time")
    if all(token in SPECIAL_TOKENS or token.startswith(UNUSED_PREFIX) for token in tokens):
        raise DataError(f"{path}: the vocabulary holds nothing but the special tokens and unused ones")


def write_vocabulary(path: str, vocabulary: Vocabulary) -> None:
    """Writes a vocabulary file with one token a line."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(token + "\n" for token in vocabulary.tokens)
