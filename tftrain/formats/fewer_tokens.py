"""Weights with a part of their vocabulary: the rows of the token embedding, the output layer and its bias that stay.

The rows keep their bits, so a text whose tokens all stay has the same hidden states.
"""

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from tftrain.architecture.describe import describe
from tftrain.config.fields import ConfigError, Problem
from tftrain.config.prepare import PrepareConfig
from tftrain.files.errors import FormatError
from tftrain.formats.weights import DerivedWeights, Weights
from tftrain.prepare import input_files, sources
from tftrain.tokenizer.smaller_vocabulary import SmallerVocabulary
from tftrain.tokenizer.tokenizer_model import Tokenizer
from tftrain.tokenizer.words import CHARACTERS_AT_ONCE, by_size

logger = logging.getLogger(__name__)

_FLAG = "keep_tokens_of"
_ROWS = 64  # A table with rows beyond its tokens keeps a multiple, for the matrix products of GPUs.


def cut(weights: Weights, texts: Sequence[str], most: int | None, shown: str) -> Weights:
    """Returns weights with the tokens that texts have, or with the most frequent ones.

    Args:
        texts: files, as --input_files of tftrain.prepare; none: the vocabulary's own order says what is frequent.
        most: number of tokens that stay; None: all that the texts have.
        shown: the flag that names the weights, for messages.

    Raises:
        FormatError, DataError: there is no tokenizer, or the texts can't be read or have no token.
        ConfigError: `most` is less than the number of tokens that every text needs.
    """
    tokenizer = weights.tokenizer
    if tokenizer is None:
        raise FormatError(f"{shown}: no tokenizer, whose tokens could be chosen; name its folder with --tokenizer_dir")
    smaller, flag = SmallerVocabulary(tokenizer), f"--{_FLAG}={','.join(texts)}"
    least, tokens = len(smaller.ids), len(tokenizer.vocabulary)
    if most is not None and most < least:
        expected = f"expected at least {least}: special tokens and those of one character or byte always stay"
        raise ConfigError([Problem("keep_tokens", most, expected)])
    if texts:
        counts = _counts(tokenizer, texts)
        order = [number for number in np.argsort(-counts, kind="stable").tolist() if counts[number]]
        if not order:
            raise FormatError(f"{flag}: no token in these files; expected text")
        smaller.add(order, most or tokens)
        covered = counts[sorted(smaller.ids)].sum() / counts.sum()
        logger.info(f"{flag}: {len(order)} different tokens; those that stay are {covered:.2%} of the text")
    else:
        smaller.add(smaller.by_rank(), most or tokens)
    cut_tokenizer, ids = smaller.build()
    padding = range(tokens, weights.model.vocab_size)
    ids += padding[: -len(ids) % _ROWS]
    logger.info(f"{len(cut_tokenizer.vocabulary)} of {tokens} tokens stay ({least} in any case), in {len(ids)} rows")
    return _with_rows(weights, ids, cut_tokenizer)


def _counts(tokenizer: Tokenizer, texts: Sequence[str]) -> np.ndarray:
    """Returns how often each token occurs in files, int64 [tokens]."""
    paths, _ = input_files.list_files(texts, flag=_FLAG)
    documents = sources.read(sources.parts(paths), PrepareConfig(document_separator="verbatim"))
    tokenize, counts = tokenizer.build(), np.zeros(len(tokenizer.vocabulary), np.int64)
    has_lines = tokenizer.vocabulary.tokenizer_type == "bpe"  # Its tokens may be line breaks.
    with tqdm(unit="token", unit_scale=True, desc=_FLAG, disable=None) as bar:
        for document in documents:
            for lines in by_size(document.paragraphs, CHARACTERS_AT_ONCE):
                ids = np.concatenate(tokenize(["\n".join([*lines, ""])] if has_lines else lines))
                counts += np.bincount(ids, minlength=len(counts))
                bar.update(len(ids))
    return counts


def _with_rows(weights: Weights, ids: Sequence[int], tokenizer: Tokenizer) -> Weights:
    """Returns weights with the rows `ids` of the vocabulary, and with the tokenizer of these tokens."""
    model = dataclasses.replace(weights.model, vocab_size=len(ids))
    axes, shapes = {}, {}
    for old, new in zip(describe(weights.model).variables(), describe(model).variables(), strict=True):
        if new.name in weights.shapes:
            shapes[new.name] = new.shape
            axes[new.name] = next((axis for axis, size in enumerate(new.shape) if size != old.shape[axis]), None)

    def read(name: str) -> np.ndarray:
        value = weights.read(name)
        return value if axes[name] is None else np.take(value, ids, axes[name])

    derived = DerivedWeights(weights, shapes, read)
    derived.model, derived.tokenizer = model, tokenizer
    return derived
