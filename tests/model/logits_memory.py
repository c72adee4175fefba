"""Prints the peak memory of the masked-LM loss, forward and backward: with all logits, and in chunks of rows.

    python -m tests.model.logits_memory

Each line is of its own process: the growth of its resident memory, from the point where inputs and weights exist.
"""

import subprocess
import sys

ROWS, WIDTH = 32 * 76, 768  # BERT base: 32 samples of 512 tokens, 76 of them masked
VOCABULARIES = (30_522, 250_880)
WAYS = ("all logits", "chunks")


def grown_bytes(words: int, way: str) -> int:
    """Returns the growth of this process's resident memory."""
    import tensorflow as tf

    from tftrain.bench.attention import reset_peak, resident_bytes
    from tftrain.model.output_layer import output_cross_entropy, output_logits
    from tftrain.parallel.mesh import Group

    @tf.function(autograph=False)
    def gradients(x, table, bias, labels):
        with tf.GradientTape() as tape:
            tape.watch([x, table, bias])
            if way == "chunks":
                entropy, _ = output_cross_entropy(x, table, labels, 0, Group(), "masked_lm", bias=bias)
            else:
                entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, output_logits(x, table, bias))
            loss = tf.reduce_sum(entropy)
        return tape.gradient(loss, [x, table, bias])

    def inputs(rows, words):
        shapes = [rows, WIDTH], [words, WIDTH], [words]
        return *(tf.fill(shape, 0.01) for shape in shapes), tf.zeros([rows], tf.int32)

    gradients(*inputs(8, 16))  # loads the kernels
    given = inputs(ROWS, words)
    reset_peak()
    before = resident_bytes("VmRSS")
    found = gradients(*given)
    found[0].numpy()  # waits for the end
    return resident_bytes("VmHWM") - before


def main() -> None:
    """Prints the table."""
    print("vocabulary  way         peak, MB")
    for words in VOCABULARIES:
        for way in WAYS:
            command = [sys.executable, "-m", "tests.model.logits_memory", str(words), way]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"{words:10,}  {way:10}  {int(done.stdout.split()[-1]) / 1e6:8,.0f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(grown_bytes(int(sys.argv[1]), sys.argv[2]))
    else:
        main()
