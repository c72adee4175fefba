"""Small texts and records for the tests of the data."""

import numpy as np
import tensorflow as tf

TEXT = (
    "the a model reads text and learns which word is missing from its sentence while another part of data shows how "
    "long batches of small examples pass through every layer before gradients are summed over all ranks in order"
)
WORDS = TEXT.split()


def text(documents: int, seed: int = 0, sentences: int = 12) -> str:
    """Returns documents of random sentences, one a line, parted by blank lines."""
    rng = np.random.default_rng(seed)

    def sentence():
        return " ".join(rng.choice(WORDS, rng.integers(4, 14))).capitalize() + "."

    made = ["\n".join(sentence() for _ in range(sentences)) for _ in range(documents)]
    return "\n\n".join(made) + "\n"


def vocab_file(path, extra=()):
    """Writes a WordPiece vocabulary that has every word of WORDS, some of them in two pieces."""
    whole = sorted(set(WORDS) - {"sentence", "another", "gradients"})
    pieces = ["sen", "##ten", "##ce", "an", "##other", "grad", "##ients", ".", *extra]
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *whole, *pieces]) + "\n", encoding="utf-8")
    return path


def standard_example(rng, vocab_size=100, length=16, slots=3) -> tuple[bytes, dict]:
    """Returns a record as BERT's create_pretraining_data writes it, serialized by TensorFlow, and its features."""
    size = int(rng.integers(8, length + 1))
    used = int(rng.integers(1, slots + 1))
    features = {
        "input_ids": [*rng.integers(5, vocab_size, size).tolist(), *[0] * (length - size)],
        "input_mask": [1] * size + [0] * (length - size),
        "segment_ids": [0] * 4 + [1] * (size - 4) + [0] * (length - size),
        "masked_lm_positions": [
            *sorted(rng.choice(np.arange(1, size), used, replace=False).tolist()),
            *[0] * (slots - used),
        ],
        "masked_lm_ids": [*rng.integers(5, vocab_size, used).tolist(), *[0] * (slots - used)],
        "masked_lm_weights": [1.0] * used + [0.0] * (slots - used),
        "next_sentence_labels": [int(rng.integers(2))],
    }
    return serialize(features), features


def serialize(features: dict) -> bytes:
    """Returns a tf.train.Example made by TensorFlow."""
    made = {}
    for name, values in features.items():
        if isinstance(values[0], float):
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def write_tfrecords(path, payloads) -> str:
    """Writes a TFRecord file with TensorFlow's own writer."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    return str(path)
