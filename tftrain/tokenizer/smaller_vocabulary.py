"""A tokenizer with some of its tokens: a text that has only tokens that stay is divided into the same tokens.

WordPiece takes the longest token that fits, so it needs no other token. Byte pairs are merged in a fixed order, so the
tokens that a token is merged from stay too. Unigram takes the most probable division, and no division becomes more
probable when tokens go; the penalty of unknown characters follows from the least probable piece, which stays. Special
tokens, added tokens, and tokens of one character or byte stay too: no text of such characters becomes unknown.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer as LibraryTokenizer

from tftrain.files.errors import FormatError
from tftrain.tokenizer.roles import ROLES
from tftrain.tokenizer.tokenizer_model import Tokenizer
from tftrain.tokenizer.vocabulary import Vocabulary

_INSIDE = "##"
_NORMAL = 1  # the type of a piece of sentencepiece that is learned
_KINDS = ("WordPiece", "BPE", "Unigram", "WordLevel")


class SmallerVocabulary:
    """Chooses the tokens of a tokenizer that stay.

    Attributes:
        ids: of the tokens that stay so far; at first those that every text needs.
    """

    def __init__(self, tokenizer: Tokenizer):
        """Raises FormatError if the library `tokenizers` has no such model."""
        self._tokenizer, tokens = tokenizer, tokenizer.vocabulary.tokens
        self._numbers = {token: number for number, token in enumerate(tokens)}
        self._scores: list[float] = []  # scores of pieces, by id, if the model has them
        self._ranks: dict[tuple[str, str], int] = {}  # ranks of merges
        self._prefix, self._suffix = _INSIDE, ""
        self._content = _content(tokenizer)
        self.ids = {*_assigned(tokenizer).values(), *(self._numbers[token] for _, token in tokenizer.special)}
        if isinstance(self._content, dict):
            self._begin(self._content["model"])
            self.ids |= {each["id"] for each in self._content.get("added_tokens") or []}
            # What the library puts around texts and after them.
            around, padding = LibraryTokenizer.from_buffer(tokenizer.model).encode("", ""), self._content.get("padding")
            self.ids |= {*itertools.compress(around.ids, around.special_tokens_mask)}
            self.ids |= {padding["pad_id"]} if padding else set()
        elif self._content is not None:
            self._scores = [piece.score for piece in self._content.pieces]
            kinds = [piece.type for piece in self._content.pieces]
            self.ids |= {number for number, kind in enumerate(kinds) if kind != _NORMAL}
            self.ids.add(min((score, n) for n, score in enumerate(self._scores) if kinds[n] == _NORMAL)[1])
        self.ids |= {number for number, token in enumerate(tokens) if self._is_single(token)}

    def _begin(self, model: Mapping[str, Any]) -> None:
        self._prefix, self._suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
        self.ids |= {self._numbers[model["unk_token"]]} if model.get("unk_token") in self._numbers else set()
        if _kind(model) == "Unigram":
            self._scores = [score for _, score in model["vocab"]]
            self.ids.add(min((score, number) for number, score in enumerate(self._scores))[1])
            self.ids |= {model["unk_id"]} - {None}
        elif _kind(model) == "BPE":
            self._ranks = {pair: rank for rank, pair in enumerate(_merges(model))}

    def _is_single(self, token: str) -> bool:
        is_byte = len(token) == 6 and token.startswith("<0x") and token.endswith(">")
        return is_byte or len(token.removeprefix(self._prefix).removesuffix(self._suffix)) <= 1

    def add(self, ids: Iterable[int], most: float = math.inf) -> None:
        """Lets tokens stay, with those that they need; leaves out the ones with which more than `most` would stay."""
        for number in ids:
            token = self._tokenizer.vocabulary.tokens[number]
            own = {number, *(self._numbers[each] for each in self._merged(token) if each in self._numbers)} - self.ids
            self.ids |= own if len(self.ids) + len(own) <= most else set()

    def by_rank(self) -> list[int]:
        """Returns the ids, the most frequent tokens first: by probability, or as they were learned."""
        scores = self._scores
        return sorted(range(len(scores)), key=lambda n: -scores[n]) if scores else list(range(len(self._numbers)))

    def _merged(self, token: str) -> Iterator[str]:
        """Yields the tokens that a token is merged from, and what is merged from these, in the model's order."""
        if not self._ranks or self._is_single(token):
            return
        bare, inner = token.removesuffix(self._suffix), token.removesuffix(self._suffix).removeprefix(self._prefix)
        symbols = [self._prefix + character for character in inner]
        symbols[0] = symbols[0] if self._prefix and bare != inner else inner[0]
        symbols[-1] += token.removeprefix(bare)
        yield from symbols
        while len(symbols) > 1:
            pairs = enumerate(itertools.pairwise(symbols))
            rank, first = min((self._ranks.get(pair, math.inf), number) for number, pair in pairs)
            if rank == math.inf:  # The model has the token for whole words only.
                return
            symbols[first : first + 2] = [symbols[first] + symbols[first + 1].removeprefix(self._prefix)]
            yield symbols[first]

    def build(self) -> tuple[Tokenizer, list[int]]:
        """Returns the tokenizer, and the id that each of its tokens had."""
        ids, tokens, content = sorted(self.ids), self._tokenizer.vocabulary.tokens, self._content
        new, model = {number: place for place, number in enumerate(ids)}, self._tokenizer.model
        if isinstance(content, dict):
            cut = json.dumps(_renumbered(content, new), ensure_ascii=False)
            model = LibraryTokenizer.from_str(cut).to_str().encode()
        elif content is not None:
            pieces, settings = [content.pieces[number] for number in ids], content.trainer_spec
            del content.pieces[:]
            content.pieces.extend(pieces)
            settings.vocab_size = len(ids)
            for name in ("unk_id", "bos_id", "eos_id", "pad_id"):
                setattr(settings, name, new.get(getattr(settings, name), -1))
            model = content.SerializeToString()
        own = self._tokenizer.vocabulary
        roles = own.roles._replace(**{role: new[number] for role, number in _assigned(self._tokenizer).items()})
        vocabulary = Vocabulary(tuple(tokens[number] for number in ids), own.tokenizer_type, roles)
        return self._tokenizer._replace(vocabulary=vocabulary, model=model), ids


def _assigned(tokenizer: Tokenizer) -> dict[str, int]:
    roles = tokenizer.vocabulary.roles
    return {role: number for role in (*ROLES, "end") if (number := getattr(roles, role)) is not None}


def _content(tokenizer: Tokenizer) -> Any:
    """Returns the content of a tokenizer.json, or a model of sentencepiece; None if there is only a list of tokens."""
    if tokenizer.model is None:
        return None
    if tokenizer.vocabulary.tokenizer_type == "sentencepiece":
        from sentencepiece import sentencepiece_model_pb2

        return sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    content = json.loads(tokenizer.model)
    if (kind := _kind(content["model"])) not in _KINDS:
        raise FormatError(f"the tokenizer's model is {kind}; expected {', '.join(_KINDS)} to keep some of its tokens")
    return content


def _kind(model: Mapping[str, Any]) -> str:
    return model.get("type") or "BPE"


def _merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [tuple(each.split(" ") if isinstance(each, str) else each) for each in model["merges"]]


def _renumbered(content: Mapping[str, Any], new: Mapping[int, int]) -> dict[str, Any]:
    """Returns the content of a tokenizer.json with the tokens whose new ids are given."""
    model, padding = dict(content["model"]), content.get("padding")
    if _kind(model) == "Unigram":
        model["vocab"] = [each for number, each in enumerate(model["vocab"]) if number in new]
        model["unk_id"] = new.get(model["unk_id"])
    else:
        model["vocab"] = {token: new[number] for token, number in model["vocab"].items() if number in new}
    if _kind(model) == "BPE":
        prefix = model.get("continuing_subword_prefix") or ""
        three = ((first, second, first + second.removeprefix(prefix)) for first, second in _merges(model))
        model["merges"] = [each[:2] for each in three if model["vocab"].keys() >= set(each)]
    added = [each | {"id": new[each["id"]]} for each in content.get("added_tokens") or []]
    padding = padding and padding | {"pad_id": new[padding["pad_id"]]}
    around = _around(content.get("post_processor"), new)
    return {**content, "model": model, "added_tokens": added, "post_processor": around, "padding": padding}


def _around(processor: Any, new: Mapping[int, int]) -> Any:
    """Returns the post-processor, which puts tokens around a text, with the new ids of these tokens."""
    if not isinstance(processor, dict):
        return processor
    changed = {name: [processor[name][0], new[processor[name][1]]] for name in ("sep", "cls") if name in processor}
    if "processors" in processor:
        changed["processors"] = [_around(each, new) for each in processor["processors"]]
    if "special_tokens" in processor:
        named = processor["special_tokens"].items()
        changed["special_tokens"] = {name: each | {"ids": [new[n] for n in each["ids"]]} for name, each in named}
    return processor | changed
