"""Tokenizers of the library `tokenizers`: WordPiece as BERT's, and those that its files describe, as byte-level BPE."""

import base64
import json
import os
from collections.abc import Callable, Sequence, Set
from functools import cache
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from tftrain.files import strict_json
from tftrain.files.errors import DataError
from tftrain.tokenizer import character_map, roles, sentencepiece_model, vocabulary
from tftrain.tokenizer.normalization import LONGEST_WORD
from tftrain.tokenizer.vocabulary import SPECIAL_TOKENS, Vocabulary
from tftrain.tokenizer.words import CHARACTERS_AT_ONCE, by_size

NO_TEXT = "\U0010fffe\U0010ffff"  # No text has these code points.
_EXPECTED = "expected a tokenizer.json of the library tokenizers, or a .model of sentencepiece"


def word_pieces(
    tokens: Sequence[str], lower_case: bool, strip_accents: bool | None, unknown: str = "[UNK]"
) -> Tokenizer:
    """Returns a WordPiece tokenizer with BERT's words and these tokens, none of which is special."""
    ids = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=LONGEST_WORD))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=strip_accents, lowercase=lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def read(
    model: bytes, with_special_tokens: bool = False, unspelled: Set[str] = frozenset(), mask: str | None = None
) -> Tokenizer:
    """Returns the tokenizer in the library's format.

    A text that spells a special token gets the tokens of its letters, or, `with_special_tokens`, that token. If some
    are `unspelled`, those of an encoder, then only those are special: others were added for texts. A text may spell the
    `mask`, if it is given, as it is.
    """
    content = json.loads(model)
    added = content.get("added_tokens") or []
    if unspelled & {each["content"] for each in added}:
        added = [each | {"special": each["content"] in unspelled - {mask}} for each in added]
        content["added_tokens"] = [each | {"normalized": False} if each["content"] == mask else each for each in added]
        _hide(content, unspelled - {mask, content["model"].get("unk_token")})
        model = json.dumps(content).encode()
    tokenizer = prepared(Tokenizer.from_buffer(model))
    tokenizer.encode_special_tokens = not with_special_tokens
    return tokenizer


def _hide(content: dict[str, Any], unspelled: Set[str]) -> None:
    """Renames tokens of models that take a text that spells one for it, to what no text has."""
    model, vocab = content["model"], content["model"].get("vocab")
    if model.get("type") == "Unigram":
        hidden = unspelled & {token for token, _ in vocab}
        model["vocab"] = [[NO_TEXT + token if token in hidden else token, score] for token, score in vocab]
    elif model.get("type") in ("WordPiece", "WordLevel"):
        hidden = unspelled & vocab.keys()
        model["vocab"] = {NO_TEXT + token if token in hidden else token: number for token, number in vocab.items()}
    else:
        return
    # The library would give them new ids.
    content["added_tokens"] = [each for each in content["added_tokens"] if each["content"] not in hidden]


def read_file(path: str) -> tuple[Vocabulary, bytes]:
    """Reads a tokenizer.json of any kind, or a .model of sentencepiece.

    Returns the vocabulary, and the tokenizer as the content of a tokenizer.json. Raises a DataError if the library
    can't read it, or if it has more than this project can do.
    """
    data, folder = vocabulary.read_file(path, _EXPECTED), os.path.dirname(path)
    if path.endswith(".model"):
        tokenizer_class = roles.read_object(folder, roles.SETTINGS).get("tokenizer_class")
        return of_sentencepiece(data, path, folder, str(tokenizer_class or ""))
    tokenizer = library(path, data, _EXPECTED)
    own = vocabulary_of(tokenizer, path, _kind(tokenizer), folder)
    if own.is_for_encoders:  # So that a text is searched for masks, although the file does not say so.
        tokenizer.add_special_tokens([own.tokens[number] for number in own.roles.special])
    return own, tokenizer.to_str().encode()


def library(path: str, data: bytes, expected: str) -> Tokenizer:
    """Returns the tokenizer of a tokenizer.json, given its bytes; raises a DataError that ends with `expected`."""
    try:
        content = strict_json.parse(data)
        _check_maps(content.get("normalizer"))
        model = content.get("model") or {}
        if model.get("type") == "Unigram" and model.get("unk_id") is None:
            raise ValueError("its Unigram model has no unk_id, for characters without a token")
        return prepared(Tokenizer.from_str(data.decode()))
    except Exception as error:  # The library raises nothing more particular.
        raise DataError(f"{path}: not a tokenizer ({error}); {expected}") from error


def of_sentencepiece(data: bytes, path: str, folder: str | None, tokenizer_class: str = "") -> tuple[Vocabulary, bytes]:
    """Returns what `read_file` does of a model of sentencepiece."""
    tokenizer = prepared(sentencepiece_model.convert(data, path, tokenizer_class))
    return with_ends(tokenizer, path, _kind(tokenizer), folder)


def with_ends(tokenizer: Tokenizer, path: str, kind: str, folder: str | None) -> tuple[Vocabulary, bytes]:
    """Returns what `read_file` does of a tokenizer that puts nothing around texts, with an encoder's tokens there."""
    own = vocabulary_of(tokenizer, path, kind, folder)
    if own.is_for_encoders:
        first, last = own.of_role("beginning"), own.of_role("separator")
        second = f":{own.roles.second_type}"
        pair = [first, "$A", *[last] * own.roles.separators, f"$B{second}", f"{last}{second}"]
        ids = [(token, own.id(token)) for token in (first, last)]
        single = f"{first} $A {last}"
        tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    return own, tokenizer.to_str().encode()


def _kind(tokenizer: Tokenizer) -> str:
    return "unigram" if isinstance(tokenizer.model, models.Unigram) else "pipeline"


def _check_maps(normalizer: Any) -> None:
    """Raises a ValueError for a damaged Precompiled map in the content of a normalizer, which aborts the library."""
    normalizer = normalizer if isinstance(normalizer, dict) else {}
    for each in normalizer.get("normalizers", ()):
        _check_maps(each)
    if normalizer.get("type") == "Precompiled":
        try:
            character_map.parts(base64.b64decode(normalizer["precompiled_charsmap"], validate=True))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the map of its Precompiled normalizer can't be read: {error}") from error


def vocabulary_of(tokenizer: Tokenizer, path: str, kind: str, folder: str | None) -> Vocabulary:
    """Returns the tokens by id with the roles that the tokenizer assigns and, if there is a folder, files in it.

    Raises a DataError if an id is left out, texts have other tokens around them than an encoder's, or `check_tokens`
    refuses the tokens.
    """
    ids = tokenizer.get_vocab(with_added_tokens=True)
    tokens = tuple(sorted(ids, key=ids.__getitem__))
    if any(ids[token] != number for number, token in enumerate(tokens)):
        left_out = f"the ids of its {len(tokens)} tokens leave out a number"
        raise DataError(f"{path}: {left_out}; expected 0 to {len(tokens) - 1}")
    named = roles.of_tokens(tokens) if folder is None else roles.beside(folder, tokens)
    try:
        assigned = roles.of_template(named, tokenizer)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    vocabulary.check_tokens(tokens, path, kind, assigned)
    return Vocabulary(tokens, kind, assigned)


def prepared(tokenizer: Tokenizer) -> Tokenizer:
    """Makes equal texts give equal tokens, never a special one; nothing is cut or padded. Returns the tokenizer."""
    tokenizer.encode_special_tokens = True
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the token ids of each text, int32, without those that the library puts around a text."""
    ids = []
    for part in by_size(texts, CHARACTERS_AT_ONCE):
        encodings = tokenizer.encode_batch_fast(part, add_special_tokens=False)
        ids += [np.array(encoding.ids, np.int32) for encoding in encodings]
    return ids


@cache
def word_finder(model: bytes | None) -> Callable[[str], list[tuple[int, int]]]:
    """Returns the function that finds BERT's words in a text as it stands: first character and end of each.

    An accent belongs to its word, and so does a character between two letters that normalization deletes. An added
    token of `model`, a tokenizer in the library's format, is a word; None has none.
    """
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, "[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False, lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for each in json.loads(model)["added_tokens"] if model else []:
        if each["content"] not in SPECIAL_TOKENS:
            tokenizer.add_tokens([AddedToken(each["content"], single_word=each["single_word"], normalized=False)])
    return lambda text: tokenizer.encode(text, add_special_tokens=False).offsets
