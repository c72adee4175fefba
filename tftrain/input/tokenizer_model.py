"""A tokenizer in a form that other processes can be sent, and what builds it.

Each library is loaded when it is needed: byte pairs need no TensorFlow, which takes a worker seconds to load.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tftrain.config.prepare import PrepareConfig
from tftrain.input.vocabulary import Vocabulary

# The file of a tokenizer's settings beside its vocabulary, as `tftrain.formats.tokenizer` and transformers write it.
SETTINGS = "tokenizer_config.json"
# Names of the serialized models beside a vocabulary.
MODEL_FILES = {"sentencepiece": "sentencepiece.model", "bpe": "tokenizer.json"}

# Returns one int32 array of token ids for each text.
Tokenize = Callable[[Sequence[str]], list[np.ndarray]]


class TokenizerModel(NamedTuple):
    """A tokenizer, in a form that other processes can be sent.

    Attributes:
        vocabulary: the tokens by id.
        model: the serialized model; None for WordPiece, which has none.
        strip_accents: whether WordPiece's normalization strips accents.
    """

    vocabulary: Vocabulary
    model: bytes | None
    strip_accents: bool = False

    def build(self, config: PrepareConfig) -> Tokenize:
        """Returns the tokenizer with the normalization of a configuration."""
        return build(
            self.vocabulary,
            self.model,
            config.resolved_lower_case,
            config.resolved_normalization,
            self.strip_accents,
        )


def build(
    vocabulary: Vocabulary,
    model: bytes | None,
    lower_case: bool,
    normalization: str,
    strip_accents: bool | None = None,
) -> Tokenize:
    """Returns a tokenizer.

    Args:
        vocabulary, model: see `TokenizerModel`.
        lower_case, normalization, strip_accents: as in the manifest of a preparation.
    """
    if vocabulary.tokenizer_type == "bpe":
        from tftrain.input.byte_pairs import BytePairTokenizer

        return BytePairTokenizer(model)
    from tftrain.input.tokenization import Tokenizer

    return Tokenizer(vocabulary, lower_case, model, normalization, strip_accents)
