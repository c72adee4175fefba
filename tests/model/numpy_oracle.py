"""The models' forward pass once more, in float64 NumPy and straight from the papers' formulas: a second opinion."""

import math
from collections.abc import Mapping

import numpy as np

from tftrain.architecture.describe import describe
from tftrain.config.model import ModelConfig

_erf = np.vectorize(math.erf)
_SLOPES = (1 / 16, 1 / 256, 1 / 4)  # ALiBi's of three heads: those of two, and the first of four


class Oracle:
    """A model without dropout.

    Attributes:
        config: the model's configuration; its scaling of rotary positions is "llama3:8,1,4,16".
        weights: global name -> float64 array.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, np.ndarray]):
        self.config, self.weights = config, weights

    def encoder(self, batch: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Returns mlm_logits [b, P, vocab] and nsp_logits [b, 2] of a batch in the standard format."""
        attended = np.repeat(batch["input_mask"][:, None] > 0, batch["input_mask"].shape[1], axis=1)
        x = self._hidden(batch["input_ids"], attended, self.weights["embeddings/token_type"][batch["segment_ids"]])
        picked = np.take_along_axis(x, batch["masked_lm_positions"][:, :, None], 1)
        picked = self._norm("masked_lm/norm", self._gelu(self._dense("masked_lm/transform", picked)))
        mlm_logits = picked @ self.weights["embeddings/word"].T + self.weights["masked_lm/bias"]
        return mlm_logits, self._dense("next_sentence", np.tanh(self._dense("pooler", x[:, 0])))

    def decoder(self, ids: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float]:
        """Returns the logits [b, S, vocab] and the summed cross-entropy."""
        x = self._hidden(ids, np.tile(np.tri(ids.shape[1], dtype=bool), [len(ids), 1, 1]))
        logits = x @ self.weights.get("output", self.weights["embeddings/word"]).T
        best = logits.max(-1)
        total = np.log(np.exp(logits - best[..., None]).sum(-1)) + best
        return logits, (total - np.take_along_axis(logits, labels[..., None], -1)[..., 0]).sum()

    def _hidden(self, ids, attended, token_types=0.0):
        """Returns the residual stream after the last norm; `attended` is bool [b, queries, keys]."""
        pre = describe(self.config).block.pre_norm
        x = self.weights["embeddings/word"][ids] + token_types
        if "embeddings/position" in self.weights:
            x = x + self.weights["embeddings/position"][: ids.shape[1]]
        x = x if pre else self._norm("embeddings/norm", x)
        for layer in range(self.config.num_hidden_layers):
            for part in ("attention", "feed_forward"):
                name = f"layer_{layer:02d}/{part}"
                y = self._norm(f"{name}/norm", x) if pre else x
                y = self._attention(name, y, attended) if part == "attention" else self._feed_forward(name, y)
                x = x + y if pre else self._norm(f"{name}/norm", x + y)
        return self._norm("final_norm", x) if pre else x

    def _dense(self, name, x):
        return x @ self.weights[f"{name}/kernel"] + self.weights.get(f"{name}/bias", 0.0)

    def _norm(self, name, x):
        gamma, epsilon = self.weights[f"{name}/gamma"], self.config.layer_norm_epsilon
        if self.config.model_family == "llama":
            return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gamma
        deviation = np.sqrt(x.var(-1, keepdims=True) + epsilon)
        return (x - x.mean(-1, keepdims=True)) / deviation * gamma + self.weights[f"{name}/beta"]

    def _gelu(self, x):
        if self.config.gelu_form == "erf":
            return x * (1 + _erf(x / math.sqrt(2))) / 2
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

    def _attention(self, name, x, attended):
        size, heads, positions = self.config.head_size, self.config.num_attention_heads, np.arange(x.shape[1])
        projected = [self._dense(f"{name}/{part}", x) for part in ("query", "key", "value")]
        result, group = np.zeros_like(projected[0]), heads // (self.config.num_key_value_heads or heads)
        for sample, head in np.ndindex(len(x), heads):
            query, key, value = (
                each[sample, :, index * size : (index + 1) * size]
                for each, index in zip(projected, (head, head // group, head // group), strict=True)
            )
            if self.config.position_embedding == "rotary":
                query, key = self._turned(query), self._turned(key)
            scores = query @ key.T / math.sqrt(size)
            if self.config.position_embedding == "alibi":
                scores += _SLOPES[head] * (positions - positions[:, None])
            powers = np.exp(scores) * attended[sample]
            context = powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300) @ value
            result[sample, :, head * size : (head + 1) * size] = context
        return self._dense(f"{name}/output", result)

    def _turned(self, x):
        """Turns one head, [S, head_size], as complex numbers: the first half real, the second imaginary."""
        half = x.shape[1] // 2
        steps = self.config.rope_theta ** (-np.arange(half) / half)
        if self.config.rope_scaling != "none":
            wavelengths = 2 * math.pi / steps
            smooth = np.clip((16 / wavelengths - 1) / (4 - 1), 0, 1)
            steps = (1 - smooth) * steps / 8 + smooth * steps
        pairs = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * np.arange(len(x))[:, None] * steps)
        return np.concatenate([pairs.real, pairs.imag], axis=1)

    def _feed_forward(self, name, x):
        y, activation = self._dense(f"{name}/up", x), self.config.activation
        if activation == "gelu":
            y = self._gelu(y)
        else:
            gate = self._dense(f"{name}/gate", x)
            y = y * (gate / (1 + np.exp(-gate)) if activation == "swiglu" else self._gelu(gate))
        return self._dense(f"{name}/down", y)
