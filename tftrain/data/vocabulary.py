"""The tokens, in the order of their ids, and what follows from them: special tokens, and where words begin."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tftrain.data.errors import DataError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SENTENCEPIECE_SPACE = "\u2581"
_UNUSED = "[unused"


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of a WordPiece or a sentencepiece tokenizer.

    Attributes:
        tokens: by id; the special tokens are among them, [PAD] with id 0.
        tokenizer_type: "wordpiece" (a piece that goes on a word begins with "##") or "sentencepiece" (a piece that
            begins a word begins with U+2581).
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
        """Whether a token begins a word: bool [vocab_size]."""
        if self.tokenizer_type == "sentencepiece":
            starts = [token.startswith(SENTENCEPIECE_SPACE) for token in self.tokens]
        else:
            starts = [not token.startswith("##") for token in self.tokens]
        starts = np.array(starts)
        starts[list(self.special_ids)] = True
        return starts

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """int32 ids of the tokens that can occur in text, which are those that may replace a masked one."""
        special = set(SPECIAL_TOKENS)
        return np.array(
            [
                number
                for number, token in enumerate(self.tokens)
                if token not in special and not token.startswith(_UNUSED)
            ],
            np.int32,
        )


def read_vocabulary(path: str, tokenizer_type: str) -> Vocabulary:
    """Reads one token a line.

    Args:
        path: a UTF-8 text file, as BERT's vocab.txt.
        tokenizer_type: "wordpiece" or "sentencepiece".

    Raises:
        DataError: the file cannot be read, holds a token twice, or lacks a special token.
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
        lines = content.decode("utf-8").split("\n")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; expected a vocabulary, one token a line") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start}: not UTF-8; expected a vocabulary, one token a line") from error
    tokens = tuple(line.removesuffix("\r") for line in lines)
    tokens = tokens[:-1] if tokens[-1] == "" else tokens
    missing = [token for token in SPECIAL_TOKENS if token not in tokens]
    if missing:
        raise DataError(
            f"{path}: the vocabulary lacks {' '.join(missing)}; expected {' '.join(SPECIAL_TOKENS)} among "
            f"its {len(tokens)} lines"
        )
    if tokens[0] != "[PAD]":
        raise DataError(f"{path}: line 1 is {tokens[0]!r}; expected [PAD] there, as padding has the id 0")
    if len(set(tokens)) != len(tokens):
        seen: set[str] = set()
        line, token = next((n, t) for n, t in enumerate(tokens, 1) if t in seen or seen.add(t))
        raise DataError(f"{path}: line {line}: the token {token!r} occurs for the second time")
    if len(tokens) == len(SPECIAL_TOKENS):
        raise DataError(f"{path}: the vocabulary holds nothing but the special tokens")
    return Vocabulary(tokens, tokenizer_type)


def write_vocabulary(path: str, vocabulary: Vocabulary) -> None:
    """Writes one token a line."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(token + "\n" for token in vocabulary.tokens)
