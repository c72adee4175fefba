"""Tokenizers of other libraries, as models that people use have them, learned from lines in twelve scripts."""

import base64
import functools
import io
import json

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.kit import scripts
from tftrain.tokenizer import pipelines

ROBERTA = ("<s>", "<pad>", "</s>", "<unk>")
XLM_R = "XLMRobertaTokenizer"


@functools.cache
def sentencepiece_model(kind="unigram", size=3000, **more) -> bytes:
    """A model of sentencepiece's trainer, as it writes it."""
    model, lines = io.BytesIO(), [line for line in scripts.lines(2400) if line.strip()]
    settings = {"hard_vocab_limit": False, "minloglevel": 2, "character_coverage": 0.98, "num_threads": 2}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=size, model_type=kind, **settings | more
    )
    return model.getvalue()


def changed(model: bytes, **steps) -> bytes:
    """A tokenizer.json with other parts: the content of each by its name."""
    return json.dumps(json.loads(model) | steps).encode()


@functools.cache
def xlm_roberta() -> bytes:
    """As xlm-roberta-base has it: fairseq's ids, a Precompiled map, words between white space, two separators."""
    _, model = pipelines.of_sentencepiece(sentencepiece_model(), "", None, XLM_R)
    (charsmap,) = [each for each in json.loads(model)["normalizer"]["normalizers"] if each["type"] == "Precompiled"]
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    words = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}
    return changed(model, normalizer=charsmap, pre_tokenizer=words)


@functools.cache
def roberta(**settings) -> bytes:
    """As roberta-base has it: GPT-2's bytes, and a mask that takes the space before it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(**{"add_prefix_space": False} | settings)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=list(ROBERTA), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(scripts.lines(2400), trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer.to_str().encode()


@functools.cache
def llama(of_transformers: bool = False) -> bytes:
    """As Llama 2 has it: BPE over characters, bytes for rare ones, spaces kept; by a normalizer as in transformers."""
    kept = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    _, model = pipelines.of_sentencepiece(sentencepiece_model("bpe", **kept), "", None)
    if not of_transformers:
        return model
    steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    tokenizer = Tokenizer.from_str(model.decode())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Sequence(steps), None
    return tokenizer.to_str().encode()


def unigram_of_bytes() -> bytes:
    """A unigram model with bytes for rare characters."""
    return pipelines.of_sentencepiece(sentencepiece_model(byte_fallback=True), "", None)[1]


LIBRARIES = {
    "xlm_roberta": xlm_roberta,
    "unigram_of_bytes": unigram_of_bytes,
    "unigram_nfkc": lambda: changed(unigram_of_bytes(), normalizer={"type": "NFKC"}),
    "roberta": roberta,
    "roberta_with_prefix": functools.partial(roberta, add_prefix_space=True),
    "llama": llama,
    "llama_of_transformers": functools.partial(llama, True),
}


def damaged_map() -> bytes:
    """XLM-R's tokenizer with a map of characters that leads out of itself."""
    content = json.loads(xlm_roberta())["normalizer"]
    whole = base64.b64decode(content["precompiled_charsmap"])
    return changed(
        xlm_roberta(),
        normalizer=content | {"precompiled_charsmap": base64.b64encode(whole[: len(whole) // 2]).decode()},
    )
