"""The model's forward pass once more, in float64 NumPy and straight from the papers' formulas: a second opinion.

It covers what tf-models lacks: pre-norm, GeGLU, keys without bias, samples without tokens.
"""

import math
from collections.abc import Mapping

import numpy as np

from tftrain.architecture.describe import describe
from tftrain.config.model import ModelConfig

_erf = np.vectorize(math.erf)


def forward(config: ModelConfig, weights: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray]):
    """Returns (mlm_logits [b, P, vocab], nsp_logits [b, 2]) in float64.

    Args:
        config: the model's configuration; dropout rates are not looked at.
        weights: global name -> float64 array.
        batch: the standard format, as arrays.
    """

    def dense(name, x):
        return x @ weights[f"{name}/kernel"] + weights.get(f"{name}/bias", 0.0)

    def norm(name, x):
        deviation = np.sqrt(x.var(-1, keepdims=True) + config.layer_norm_epsilon)
        return (x - x.mean(-1, keepdims=True)) / deviation * weights[f"{name}/gamma"] + weights[f"{name}/beta"]

    def gelu(x):
        if config.gelu_form == "erf":
            return x * (1 + _erf(x / math.sqrt(2))) / 2
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

    def attention(name, x):
        result = np.zeros_like(x)
        query, key, value = (dense(f"{name}/{part}", x) for part in ("query", "key", "value"))
        for sample, tokens in enumerate(batch["input_mask"] > 0):
            for head in range(config.num_attention_heads if tokens.any() else 0):
                columns = slice(head * config.head_size, (head + 1) * config.head_size)
                keys, values = key[sample, tokens, columns], value[sample, tokens, columns]
                scores = np.exp(query[sample, :, columns] @ keys.T / math.sqrt(config.head_size))
                result[sample, :, columns] = scores / scores.sum(-1, keepdims=True) @ values
        return dense(f"{name}/output", result)

    def feed_forward(name, x):
        up = dense(f"{name}/up", x)
        return dense(f"{name}/down", gelu(dense(f"{name}/gate", x)) * up if config.activation == "geglu" else gelu(up))

    ids = batch["input_ids"]
    x = weights["embeddings/word"][ids] + weights["embeddings/token_type"][batch["segment_ids"]]
    x = x + weights["embeddings/position"][: ids.shape[1]]
    if not describe(config).block.pre_norm:
        x = norm("embeddings/norm", x)
    for layer in range(config.num_hidden_layers):
        for part, sublayer in (("attention", attention), ("feed_forward", feed_forward)):
            name = f"layer_{layer:02d}/{part}"
            if not describe(config).block.pre_norm:
                x = norm(f"{name}/norm", x + sublayer(name, x))
            else:
                x = x + sublayer(name, norm(f"{name}/norm", x))
    if describe(config).block.pre_norm:
        x = norm("final_norm", x)

    picked = np.take_along_axis(x, batch["masked_lm_positions"][:, :, None], 1)
    picked = norm("masked_lm/norm", gelu(dense("masked_lm/transform", picked)))
    mlm_logits = picked @ weights["embeddings/word"].T + weights["masked_lm/bias"]
    return mlm_logits, dense("next_sentence", np.tanh(dense("pooler", x[:, 0])))
