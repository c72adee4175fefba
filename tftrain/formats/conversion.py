"""A conversion of a model from one format to another, with its tokenizer; a line says what is left out or drawn."""

import logging
from pathlib import Path

import numpy as np
from tqdm import tqdm

from tftrain.config.convert import ConvertConfig, Place, parse_place
from tftrain.files.complete_folder import complete_folder
from tftrain.formats import fewer_tokens, registry
from tftrain.formats.run_folder import AveragedWeights, take_tokenizer
from tftrain.formats.weights import DerivedWeights, Weights, heads_of, listed, with_initial_heads

logger = logging.getLogger(__name__)


def convert(config: ConvertConfig) -> None:
    """Writes the model into a folder that appears when it is complete; an error names the file or the flag."""
    target = parse_place(config.to)
    source = registry.local(parse_place(config.from_), f"--from={config.from_}", config.average_last)
    weights: Weights
    if config.average_last > 1:
        weights = AveragedWeights(Path(source.path), config.average_last, config.weights == "averaged")
    else:
        weights = registry.open_weights(source, config.allow_pickle, config.weights)
    take_tokenizer(weights, config.tokenizer_dir, f"--from={config.from_}")
    logger.info(f"{config.from_}: {_described(weights)}")
    for note in weights.notes:
        logger.info(note)
    if missing := weights.missing:
        logger.info(f"{config.from_} has no {' and no '.join(missing)}")
    if config.keep_tokens_of or config.keep_tokens:
        weights = fewer_tokens.cut(weights, config.keep_tokens_of, config.keep_tokens, f"--from={config.from_}")
    if config.init_missing:
        given, weights = weights.shapes, with_initial_heads(weights, heads_of(weights.model), config.seed)
        if added := [name for name in weights.shapes if name not in given]:
            logger.info(f"initial values were drawn for {listed(added)}")
    with (
        complete_folder(Path(target.path)) as folder,
        tqdm(total=len(weights.shapes), unit="tensor", desc=config.to, disable=None) as bar,
    ):
        written = Place(target.format, str(folder))

        def read(name: str) -> np.ndarray:
            bar.update()
            return weights.read(name)

        watched, most = DerivedWeights(weights, weights.shapes, read), config.max_shard_gb * 1e9
        left_out = registry.write_weights(written, watched, config.architecture, most)
    if left_out:
        logger.info(f"not written, as {target.format} has no such tensors: {listed(left_out)}")
    if weights.tokenizer is None:
        logger.info("no tokenizer is beside the weights, so none was written; name one with --tokenizer_dir")
    elif weights.tokenizer.normalization == "nfkc" and target.format != "tftrain":
        logger.info(
            f"{target.format} has no tokenizer with this normalization (nfkc): only tftrain reads it as written"
        )
    logger.info(f"{config.to}: {len(weights.shapes) - len(left_out)} tensors written")


def _described(weights: Weights) -> str:
    model, tokenizer = weights.model, weights.tokenizer
    words = "no tokenizer"
    if tokenizer:
        case = "lower-cased" if tokenizer.lower_case else "cased"
        words = f"{case} {tokenizer.vocabulary.tokenizer_type} of {len(tokenizer.vocabulary)} tokens"
    act = "SwiGLU" if model.activation == "swiglu" else f"{model.gelu_form} GeLU"
    return (
        f"{model.model_family}, {model.num_hidden_layers} layers x {model.hidden_size}, {model.num_attention_heads} "
        f"heads, {act}, {len(weights.shapes)} tensors, vocabulary of {model.vocab_size}, {words}"
    )
