"""A model of sentencepiece as a tokenizer of the library `tokenizers`, as transformers converts it."""

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tftrain.files.errors import DataError

FILES = ("sentencepiece.bpe.model", "tokenizer.model", "spiece.model", "sentencepiece.model")
_SPACE = "\u2581"
_UNIGRAM, _BPE = 1, 2
_UNKNOWN, _ADDED = 2, (3, 4)  # types of pieces: unknown; control and user-defined, which are found before all others
_BYTE = 6
# fairseq has other first tokens than its model of sentencepiece, and a mask: by class, those, and the model's that they
# replace.
_FAIRSEQ = {
    "XLMRobertaTokenizer": (("<s>", "<pad>", "</s>", "<unk>"), 3),
    "CamembertTokenizer": (("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"), 1),
}


def convert(content: bytes, path: str, tokenizer_class: str = "") -> Tokenizer:
    """Returns the tokenizer of a .model file, for a class of transformers if that has other ids.

    Raises a DataError if it is not such a file, or its algorithm is neither unigram nor bpe.
    """
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(content)
    except Exception as error:  # protobuf has another class for each of its implementations.
        raise DataError(
            f"{path}: not a sentencepiece model; expected the .model file that its trainer writes"
        ) from error
    kind, pieces = proto.trainer_spec.model_type, [(piece.piece, piece.score) for piece in proto.pieces]
    if kind not in (_UNIGRAM, _BPE) or not pieces:
        raise DataError(f"{path}: its model_type is {kind}, with {len(pieces)} pieces; expected unigram (1) or bpe (2)")
    unknown = next((n for n, piece in enumerate(proto.pieces) if piece.type == _UNKNOWN), 0)
    added = [piece.piece for piece in proto.pieces if piece.type in _ADDED]
    special = {piece.piece for piece in proto.pieces if piece.type == _ADDED[0]}
    first, replaced = _FAIRSEQ.get(tokenizer_class.removesuffix("Fast"), ((), 0))
    if first:
        pieces = [*((token, 0.0) for token in first), *pieces[replaced:], ("<mask>", 0.0)]
        unknown, added = first.index("<unk>"), ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        special = set(added)
    has_bytes = any(piece.type == _BYTE for piece in proto.pieces)
    tokenizer = Tokenizer(_model(kind, pieces, unknown, has_bytes))
    _add_text_steps(tokenizer, proto.normalizer_spec, proto.trainer_spec.split_by_whitespace)
    for token in added:
        flags = {"normalized": False, "special": token in special}
        add = tokenizer.add_special_tokens if token in special else tokenizer.add_tokens
        add([AddedToken(token, lstrip=bool(first) and token == "<mask>", **flags)])
    return tokenizer


def _model(kind: int, pieces: Sequence[tuple[str, float]], unknown: int, has_bytes: bool) -> models.Model:
    if kind == _UNIGRAM:
        return models.Unigram([*pieces], unknown, has_bytes)
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    merges = []
    for piece, score in pieces:
        pairs = ((piece[:n], piece[n:]) for n in range(1, len(piece)))
        pairs = sorted(
            (pair for pair in pairs if pair[0] in ids and pair[1] in ids), key=lambda p: (ids[p[0]], ids[p[1]])
        )
        merges += [(score, pair) for pair in pairs]
    merges = [pair for _, pair in sorted(merges, key=lambda merge: -merge[0])]
    return models.BPE(ids, merges, unk_token=pieces[unknown][0], fuse_unk=True, byte_fallback=has_bytes)


def _add_text_steps(tokenizer: Tokenizer, spec: Any, splits: bool) -> None:
    """Adds what the model does with a text before it cuts it, and the decoder."""
    steps = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(left=True, right=True), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps) if steps else None
    scheme = "always" if spec.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, scheme, split=splits and spec.remove_extra_whitespaces)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(_SPACE, scheme), decoders.Fuse()]
    )
