"""The shapes that tools/gpu_flash.py times, and their operations.

These are the operations of the two matrix products, of the pairs of query and key that the masks leave: 4 head_size for
each pair in forward, and 2.5 times as many in backward.
"""

from typing import NamedTuple


class Form(NamedTuple):
    """A shape to time: `rate` is that of the dropout, `window` the farthest key, `key_heads` those that heads share."""

    batch: int
    length: int
    heads: int
    head_size: int
    causal: bool = False
    rate: float = 0.0
    window: int = -1
    key_heads: int = 0

    @property
    def words(self) -> str:
        """What is not the default."""
        words = ["causal"] * self.causal + ["dropout"] * (self.rate > 0)
        words += [f"window {self.window}"] * (self.window >= 0) + [f"{self.key_heads} key heads"] * (self.key_heads > 0)
        return ", ".join(words)

    def operations(self, which: str) -> float:
        """Returns the floating-point operations of a pass."""
        length, window = self.length, self.window if self.window >= 0 else self.length - 1
        before = length * window - window * (window + 1) // 2  # pairs of a query and an earlier key
        pairs = length + before * (1 if self.causal else 2)
        return 4 * self.batch * self.heads * pairs * self.head_size * {"forward": 1, "backward": 2.5}[which]


# 16,384 tokens of 1024 numbers: BERT-large at 512 tokens, longer texts, wider heads, local layers, shared keys.
FORMS = [
    Form(16384 // length, length, 1024 // head_size, head_size, causal, rate)
    for length, head_size in [(512, 64), (2048, 64), (2048, 128), (8192, 64), (1024, 64), (512, 128)]
    for causal, rate in [(False, 0.0), (True, 0.0), (False, 0.1)]
]
FORMS[9:9] = [
    Form(2, 8192, 16, 64, window=64),
    Form(2, 8192, 8, 128, causal=True, window=1024),
    Form(8, 2048, 32, 64, causal=True, key_heads=8),
    Form(8, 2048, 32, 128, causal=True, key_heads=8),
]
