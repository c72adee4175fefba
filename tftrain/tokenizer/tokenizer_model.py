"""A tokenizer with its normalization: in files, as other processes can be sent it, and as what turns texts into ids.

TensorFlow is loaded only for tokenizers that need it: it takes a worker seconds.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from tftrain.families.bert import NORMALIZATION
from tftrain.tokenizer import pipelines
from tftrain.tokenizer.byte_pairs import around
from tftrain.tokenizer.normalization import cut_spaceless
from tftrain.tokenizer.vocabulary import KINDS, LIBRARY, Vocabulary

# Names of the serialized models beside a vocabulary.
MODEL_FILES = dict.fromkeys(KINDS, "tokenizer.json") | {"sentencepiece": "sentencepiece.model"}

# Returns one int32 array of token ids for each text.
Tokenize = Callable[[Sequence[str]], list[np.ndarray]]


class ChatTemplate(str):
    """A Jinja template, with the file that it was read from, for messages."""

    path = ""

    @classmethod
    def of(cls, text: str, path: str) -> "ChatTemplate":
        """Returns the template in a file."""
        template = cls(text)
        template.path = path
        return template


class Tokenizer(NamedTuple):
    """A vocabulary, whose kind is that of the tokenizer, and how text is normalized."""

    vocabulary: Vocabulary
    lower_case: bool
    normalization: str  # as in the manifest of a preparation
    # The file of a sentencepiece model or of byte-level BPE, or of a WordPiece with added tokens; None for another one.
    model: bytes | None = None
    strip_accents: bool | None = None  # whether WordPiece strips accents; None: if it lower-cases
    chat_template: str | None = None  # a Jinja template that makes a text of messages
    special: tuple[tuple[str, str], ...] = ()  # "bos_token", "eos_token" ... of a decoder, if not the end token
    begins_with_bos: bool = False  # whether a decoder reads bos_token before a text; a chat template writes its own

    @property
    def has_added_tokens(self) -> bool:
        """Whether a WordPiece has tokens that are found before a text is divided into words."""
        return self.vocabulary.tokenizer_type == "wordpiece" and self.model is not None

    @property
    def cuts_clauses(self) -> bool:
        """Whether long clauses of scripts without spaces are cut, as they would be unknown words."""
        return self.vocabulary.tokenizer_type in ("wordpiece", "sentencepiece")

    @property
    def finds_masks(self) -> bool:
        """Whether the library finds masks in a text, with the spaces that belong to them; others divide it there."""
        return self.vocabulary.tokenizer_type in LIBRARY and self.vocabulary.is_for_encoders

    @property
    def needs_tensorflow_text(self) -> bool:
        """Whether texts become ids by ops of tensorflow-text, and not by the library `tokenizers`."""
        kind = self.vocabulary.tokenizer_type
        return kind == "sentencepiece" or (kind == "wordpiece" and self.normalization != NORMALIZATION)

    @property
    def named_tokens(self) -> dict[str, str]:
        """The special tokens of a decoder by the names that transformers and chat templates have for them."""
        end = self.vocabulary.tokens[self.vocabulary.end_id]
        return dict.fromkeys(("bos_token", "eos_token", "unk_token"), end) | dict(self.special)

    @property
    def begin_ids(self) -> np.ndarray:
        """Ids of the tokens before a text for a decoder, int32: one, or none."""
        tokens = [self.named_tokens["bos_token"]] if self.begins_with_bos else []
        return np.array([self.vocabulary.id(token) for token in tokens], np.int32)

    @property
    def around_ids(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids of the tokens before and after a whole text, int32: one each for an encoder; a decoder's may be none."""
        if not (roles := self.vocabulary.roles).lacking:
            return np.array([roles.beginning], np.int32), np.array([roles.separator], np.int32)
        has_library = self.model is not None and not self.needs_tensorflow_text
        return self.begin_ids, np.array(around(self.model)[1] if has_library else [], np.int32)

    @property
    def end_ids(self) -> tuple[int, int]:
        """Ids of both tokens that end a decoder's text: the one after a document or a completion, and the eos_token."""
        return self.vocabulary.end_id, self.vocabulary.id(self.named_tokens["eos_token"])

    @property
    def unspelled(self) -> set[str]:
        """The tokens that no text of an encoder spells."""
        tokens, roles = self.vocabulary.tokens, self.vocabulary.roles
        return set() if roles.lacking else {tokens[number] for number in roles.special}

    def build(self, with_special_tokens: bool = False, with_mask: bool = False) -> Tokenize:
        """Loads the library, and returns what turns texts into ids, with long clauses cut as in prepared text.

        Args:
            with_special_tokens: whether an added special token that a text spells is that token.
            with_mask: whether a mask that a text spells is that token, if this kind of tokenizer `finds_masks`.
        """
        if self.needs_tensorflow_text:
            from tftrain.tokenizer import tensorflow_text

            ops = tensorflow_text.ops(self.vocabulary, self.lower_case, self.model)
            tokenize = partial(tensorflow_text.encode, ops)
        elif self.model is not None:
            mask = self.vocabulary.of_role("mask") if with_mask and self.finds_masks else None
            own = pipelines.read(self.model, with_special_tokens, self.unspelled, mask)
            tokenize = partial(pipelines.encode, own)
        else:
            unknown = self.vocabulary.of_role("unknown")
            library = pipelines.word_pieces(self.vocabulary.tokens, self.lower_case, self.strip_accents, unknown)
            tokenize = partial(pipelines.encode, library)
        return (lambda texts: tokenize(list(map(cut_spaceless, texts)))) if self.cuts_clauses else tokenize
