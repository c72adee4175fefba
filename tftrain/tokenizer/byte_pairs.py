"""Byte-level BPE (Sennrich et al., arXiv 1508.07909, over bytes as in GPT-2), by the library `tokenizers`.

A text is a sequence of bytes, and every byte is a token, so every text has tokens, and the tokens give back the text
exactly. GPT-2's expression cuts a text into words first, and no token reaches over a word's end.
"""

import functools
import os
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tftrain.files import strict_json
from tftrain.files.errors import DataError
from tftrain.tokenizer.pipelines import encode, library, prepared, vocabulary_of, with_ends
from tftrain.tokenizer.vocabulary import END_OF_TEXT, LONGEST_TOKEN, Vocabulary, byte_characters, read_file, read_text

ALPHABET = tuple(sorted(byte_characters()))
_LONGEST_LEARNED = LONGEST_TOKEN // 2  # A byte is a character of at most two bytes in the vocabulary.
_MIN_FREQUENCY = 2  # A pair that occurs once is not worth a token.
# Characters of one to four bytes, words, numbers, and spaces of several kinds.
_SAMPLE = "".join(map(chr, range(0x800))) + " a  b\n\n c\t\u4e00\u3000\U0001f600\U0010ffff don't 1234"


def learn_byte_pairs(
    texts: Iterable[list[str]], vocab_size: int, special: Sequence[str] = (END_OF_TEXT,)
) -> tuple[Vocabulary, bytes]:
    """Learns a vocabulary: the special tokens, the 256 bytes and the pairs that occur most often.

    The result depends on the texts only, and not on their order or on the number of threads.

    Args:
        texts: lists of texts.
        vocab_size: tokens; at least the 256 bytes and the special tokens. A small text gives fewer.
        special: END_OF_TEXT; or SPECIAL_TOKENS, and then transformers reads a text as [CLS] text [SEP].

    Returns:
        The vocabulary, and the tokenizer in the library's format (tokenizer.json).
    """
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=list(special),
        initial_alphabet=list(ALPHABET),
        max_token_length=_LONGEST_LEARNED,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return with_ends(tokenizer, "the learned tokenizer", "bpe", None)


def read_byte_pairs(path: str) -> tuple[Vocabulary, bytes]:
    """Reads an existing vocabulary, and returns what `learn_byte_pairs` does.

    The path is a tokenizer.json of `tokenizers`; or GPT-2's vocab.json, with merges.txt beside it. The names may have a
    prefix, such as gpt2-vocab.json and gpt2-merges.txt. Raises a DataError if a file can't be read, or is not a
    byte-level BPE that gives every text back exactly, or in NFC.
    """
    data = read_file(path, _EXPECTED)
    try:
        content = strict_json.parse(data)
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); {_EXPECTED}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a vocabulary; {_EXPECTED}")
    if "model" in content:
        model = content["model"]
        if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
            raise DataError(f"{path}: the tokenizer is not a BPE; {_EXPECTED}")
        tokenizer = library(path, data, _EXPECTED)
    else:
        tokenizer = _from_gpt2(path, content)
    vocabulary = vocabulary_of(tokenizer, path, "bpe", os.path.dirname(path))
    if missing := set(ALPHABET) - set(vocabulary.tokens):
        raise DataError(f"{path}: {len(missing)} of the 256 bytes are not tokens; {_EXPECTED}")
    # Qwen's tokenizers compose accents first.
    expected = unicodedata.normalize("NFC", _SAMPLE) if isinstance(tokenizer.normalizer, normalizers.NFC) else _SAMPLE
    if tokenizer.decode(encode(tokenizer, [_SAMPLE])[0].tolist(), skip_special_tokens=False) != expected:
        raise DataError(f"{path}: decoding its tokens does not give the original text; {_EXPECTED}")
    return vocabulary, tokenizer.to_str().encode()


@functools.lru_cache(maxsize=2)
def around(model: bytes) -> tuple[list[int], list[int]]:
    """Returns the ids that the library puts before a text and after it, given the tokenizer in its format."""
    encoding = prepared(Tokenizer.from_buffer(model)).encode("a")
    own = [place for place, text in enumerate(encoding.sequence_ids) if text is not None]
    return encoding.ids[: own[0]], encoding.ids[own[-1] + 1 :]


def with_beginning(model: bytes, token: str | None) -> bytes:
    """Returns the tokenizer in the library's format so that it puts a token before a text; the end stays."""
    tokenizer, begin = Tokenizer.from_buffer(model), [token] if token else []
    end = [tokenizer.id_to_token(number) for number in around(model)[1]]
    ids = [(each, tokenizer.token_to_id(each)) for each in {*begin, *end}]
    pieces = {"single": [*begin, "$A", *end], "pair": [*begin, "$A", "$B:1", *end]}
    tokenizer.post_processor = processors.TemplateProcessing(**pieces, special_tokens=ids)
    return tokenizer.to_str().encode()


_EXPECTED = "expected a byte-level BPE, as GPT-2's: tokenizer.json, or vocab.json with merges.txt beside it"


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _from_gpt2(path: str, vocabulary: dict[str, Any]) -> Tokenizer:
    """Returns the tokenizer of a vocab.json and the merges.txt beside it."""
    if not vocabulary or not all(type(number) is int and 0 <= number < 1 << 31 for number in vocabulary.values()):
        raise DataError(f"{path}: not a vocabulary of tokens with their ids; {_EXPECTED}")
    folder, name = os.path.split(path)
    if "vocab" not in name:
        raise DataError(f"{path}: the name of merges.txt does not follow from this name; {_EXPECTED}")
    merges_path = os.path.join(folder, name.replace("vocab", "merges").removesuffix(".json") + ".txt")
    merges = []
    for number, line in enumerate(read_text(merges_path, _EXPECTED).splitlines(), 1):
        if line and not (number == 1 and line.startswith("#version")):
            parts = tuple(line.split(" "))
            if len(parts) != 2 or not {*parts, "".join(parts)} <= vocabulary.keys():
                raise DataError(f"{merges_path}: line {number}: not two tokens that make a third one; {_EXPECTED}")
            merges.append(parts)
    tokenizer = prepared(_byte_level(models.BPE(vocab=vocabulary, merges=merges)))
    if END_OF_TEXT in vocabulary:
        tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer
