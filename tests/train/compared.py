"""What each rank does in `test_cached_gradients`: the same losses of a task that compares samples, in many layouts.

    horovodrun -np 4 --gloo python -m tests.train.compared      # the cases of 4 ranks

The one-rank run with one micro-batch is made in the same process, from the same seed and global batches, dropout on.
"""

import dataclasses
import functools
import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from tests.train.layouts import ZERO_1, ZERO_2, ZERO_3, connected
from tests.train.test_step import BASE, SEQ, VOCAB
from tftrain.config.compute import ComputeConfig
from tftrain.config.fine_tuning import TAUGHT, FineTuningConfig
from tftrain.config.parallel import BatchConfig, ParallelConfig
from tftrain.parallel import start as starting
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.mesh import Mesh
from tftrain.parallel.start import start
from tftrain.state.new_run import new_run
from tftrain.train.step import TrainStep

SAMPLES, STEPS = 64, 3
MODEL = dataclasses.replace(BASE.model, task="embedding", num_hidden_layers=2, num_attention_heads=4)
DROPPED = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
TP, PP = {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}
SEQUENCE = {**TP, "sequence_parallel": True}
JIT = {"compute": {"jit_compile": "true"}}
# Others than the mean of an encoder's states: a dense layer, which each tensor parallel rank has, and a decoder.
DENSE = {"vectors": {"pooling": "cls", "embedding_dense": 10, "normalize_embeddings": False}}
LLAMA = {"activation": "swiglu", "position_embedding": "rotary", "bias": "none", "tie_output": False}
LAST = {"vectors": {"model_family": "llama", **LLAMA, "embedding_dense": 6, "embedding_activation": "identity"}}
# What the cases share that run every day, so that the chief has one run to compare with: see `alone`.
DAILY = {**LAST, "loss": {"embedding_loss": "symmetric", "negatives": 2}}
CASES = {  # by ranks and name: micro-batch, flags of the layout, other flags
    2: {
        **{f"dp2-{size}": (size, {}, {}) for size in (2, 8, 32)},
        "dp2-xla": (32, {}, JIT),
        "dp2-segments": (8, {"backward_segments": 2}, {**DAILY, **JIT}),
        "dp2-segments-whole": (32, {"backward_segments": 2}, JIT),
        "dp2-rows": (8, {}, {"compute": {"sparse_as_dense": False}}),
        "zero1": (16, ZERO_1, {}),
        "zero2": (16, ZERO_2, JIT),
        "zero2-whole": (32, ZERO_2, JIT),
        "zero3": (8, ZERO_3, {}),
        "zero3-whole": (32, ZERO_3, {}),
        "tp2": (16, TP, {}),
        "pp2": (8, PP, {}),
        "pp2-whole": (64, PP, {}),
        "dp2-cosent": (8, {}, {"loss": {"embedding_loss": "cosent"}}),
        "dp2-symmetric": (8, {}, {"loss": {"embedding_loss": "symmetric", "matryoshka_dims": "8", "negatives": 1}}),
        "zero3-last": (8, ZERO_3, DAILY),
        "pp2-last": (8, PP, DAILY),
        "pp2-kl": (8, PP, {"loss": {"embedding_loss": "kl", "negatives": 2}}),
        "zero2-triplet": (8, ZERO_2, {"loss": {"embedding_loss": "triplet", "negatives": 1}, **JIT}),
        "tp2-sequence-last": (16, SEQUENCE, DAILY),
        "zero3-dense": (16, ZERO_3, DENSE),
        "pp2-zero_bubble-dense": (16, {**PP, "pipeline_schedule": "zero_bubble"}, DENSE),
    },
    4: {
        "dp4": (4, {}, {}),
        "zero3-full": (8, ZERO_3, {"compute": {"activation_checkpointing": "full"}}),
        "dp2-tp2-sequence-zero2": (8, {**TP, **ZERO_2, "sequence_parallel": True}, {}),
        "dp2-pp2-zero1": (4, {**PP, **ZERO_1}, {}),
        "dp2-pp2-zero_bubble": (4, {**PP, "pipeline_schedule": "zero_bubble"}, {}),
        "tp2-pp2": (16, {**TP, **PP}, {}),
        "dp4-segments-last": (4, {"backward_segments": 2}, {**LAST, **JIT}),
        "tp2-sequence-pp2-last": (16, {**SEQUENCE, **PP}, LAST),
        "dp2-tp2-zero2-dense": (8, {**TP, **ZERO_2}, DENSE),
    },
}


def configured(micro_batch, parallel=None, others=None):
    """Returns the configuration of a run over pairs of texts."""
    others = others or {}
    return dataclasses.replace(
        BASE,
        model=dataclasses.replace(MODEL, **others.get("vectors", {}), **others.get("model", DROPPED)),
        fine_tuning=FineTuningConfig(train_file="unused.tsv", tokenizer_dir="unused", **others.get("loss", {})),
        data=dataclasses.replace(BASE.data, synthetic_data=False),
        batch=BatchConfig(micro_batch_size=micro_batch, global_batch_size=others.get("samples", SAMPLES)),
        parallel=ParallelConfig(**(parallel or {})),
        compute=ComputeConfig(**others.get("compute", {})),
    )


def batches(count, samples=SAMPLES, settings=None):
    """Yields random pairs; the second text has most tokens of the first one. `settings` add what their loss takes."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        first = rng.integers(1, VOCAB, (samples, SEQ))
        second = np.where(rng.random(first.shape) < 0.3, rng.integers(1, VOCAB, first.shape), first)
        lengths = rng.integers(3, SEQ + 1, (samples, 2, 1))
        integers = {
            "input_ids": np.concatenate([first, second], axis=1),
            "input_mask": (np.arange(SEQ) < lengths).reshape(samples, -1),
            "segment_ids": np.zeros([samples, 2 * SEQ]),
        }
        batch = {name: tf.constant(value, tf.int32) for name, value in integers.items()}
        batch |= {"example_weights": tf.ones([samples])}
        yield _with_features(batch, samples, settings) if settings else batch


def _with_features(batch, samples, settings):
    """Adds hard negatives, labels, and ids of texts, of which some are equal and some negatives are missing."""
    rng, negatives, integers = np.random.default_rng(1), settings.negatives or 0, {}
    for name in ("input_ids", "input_mask", "segment_ids"):
        more = {"input_ids": rng.integers(1, VOCAB, (samples, negatives * SEQ))}.get(name)
        more = np.full([samples, negatives * SEQ], int(name == "input_mask")) if more is None else more
        integers[name] = tf.concat([batch[name], tf.constant(more, tf.int32)], axis=1)
    ids = rng.integers(1, 3 * samples, (samples, 2 + negatives))
    ids[1::5, 2:] = 0
    shape = [samples, 1 + negatives] if settings.embedding_loss in TAUGHT else [samples]
    labels = tf.constant(rng.normal(size=shape), tf.float32)
    return batch | integers | {"text_ids": tf.constant(ids), "labels": labels}


def train(config, mesh=None, steps=STEPS):
    """Returns the sums and the gradient norm of each update."""
    mesh = mesh or Mesh()
    step, samples = TrainStep(new_run(config.resolve(mesh.size), mesh)), config.batch.global_batch_size
    begin, end = mesh.data.share(samples)
    settings = config.fine_tuning if config.fine_tuning != configured(1).fine_tuning else None
    every = batches(steps, samples, settings)
    infos = [step({name: each[begin:end] for name, each in batch.items()}) for batch in every]
    return np.array([[*np.asarray(info.sums, np.float64), float(info.grad_norm)] for info in infos])


def alone(others):
    """Returns what one rank with one micro-batch gives for the vectors and the loss of a case."""
    return _alone(*(tuple(others.get(name, {}).items()) for name in ("vectors", "loss")))


@functools.cache
def _alone(vectors, loss):
    return train(configured(SAMPLES, others={"vectors": dict(vectors), "loss": dict(loss)}))


def check(name, found, expected, tolerance=2e-7):
    """Compares with one micro-batch of one rank; returns how much the losses differ."""
    assert np.isfinite(expected).all(), name
    np.testing.assert_array_equal(found[:, [1, 3]], expected[:, [1, 3]], err_msg=name)
    # The first loss is of equal weights. Later ones are of weights whose first updates round in their own ways.
    np.testing.assert_allclose(found[0, 0], expected[0, 0], rtol=tolerance, err_msg=name)
    np.testing.assert_allclose(found[0, -1], expected[0, -1], rtol=50 * tolerance, err_msg=name)
    np.testing.assert_allclose(found[:, 0], expected[:, 0], rtol=50 * tolerance, err_msg=name)
    errors = np.abs(found[:, 0] / expected[:, 0] - 1)
    return f"first loss {errors[0]:.1e}, last {errors[-1]:.1e}"


def main():
    """Runs the cases of so many ranks, by mesh: those of the arguments, or all."""
    launch, mesh, before = launch_from_environment(), None, None
    starting.value_of_rank_0 = lambda launch, name, value: value  # The launcher's store remembers the first start.
    every = {name: configured(*CASES[launch.size][name]) for name in sys.argv[1:] or CASES[launch.size]}
    sizes = {
        name: (each.parallel.tensor_parallel_size, each.parallel.pipeline_parallel_size) for name, each in every.items()
    }
    for name in sorted(every, key=sizes.get):
        if before != sizes[name]:
            if mesh is not None:
                hvd.shutdown()
            before, mesh = sizes[name], start(launch, 1, connected(every[name].parallel))
        found = train(every[name], mesh)
        if mesh.is_chief:
            print(f"{name} agrees: {check(name, found, alone(CASES[launch.size][name][2]))}", flush=True)
        hvd.allreduce(tf.zeros([1]), name="end")  # Horovod ends on all ranks when one is done.


if __name__ == "__main__":
    main()
