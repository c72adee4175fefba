"""One update: micro-batches add up to the batch, weighted by masked tokens, whatever the precision and the compiler."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint import states
from tests.model.samples import PLAIN, LossSums, loss_sums
from tftrain.config.compute import ComputeConfig
from tftrain.config.data import DataConfig
from tftrain.config.model import ModelConfig
from tftrain.config.optimizer import OptimizerConfig
from tftrain.config.parallel import BatchConfig, ParallelConfig
from tftrain.config.run import RunConfig
from tftrain.config.train import TrainConfig
from tftrain.families import FAMILIES
from tftrain.parallel.mesh import Mesh
from tftrain.state.new_run import new_run
from tftrain.train.step import Requests, TrainStep

pytestmark = pytest.mark.slow

VOCAB, SEQ, PREDICTIONS, SAMPLES = 67, 12, 4, 12
BASE = TrainConfig(
    model=ModelConfig(vocab_size=VOCAB, num_hidden_layers=1, hidden_size=16, num_attention_heads=2, **PLAIN),
    data=DataConfig(synthetic_data=True, max_seq_length=SEQ, max_predictions_per_seq=PREDICTIONS),
    optimizer=OptimizerConfig(learning_rate=0.01, warmup_steps=0),
    batch=BatchConfig(grad_accum_steps=1, global_batch_size=SAMPLES),
    run=RunConfig(output_dir="unused", max_steps=50),
)


def batches(count, seed=0, samples=SAMPLES):
    """Random batches whose samples differ widely in how many masked tokens they have; the first sample has none."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        masked = rng.integers(0, PREDICTIONS + 1, samples)
        masked[0] = 0
        lengths = rng.integers(4, SEQ + 1, samples)
        integers = {
            "input_ids": rng.integers(1, VOCAB, (samples, SEQ)),
            "input_mask": np.arange(SEQ) < lengths[:, None],
            "segment_ids": rng.integers(0, 2, (samples, SEQ)),
            "masked_lm_positions": rng.integers(0, 4, (samples, PREDICTIONS)),
            "masked_lm_ids": rng.integers(1, VOCAB, (samples, PREDICTIONS)),
            "next_sentence_labels": rng.integers(0, 2, samples),
        }
        batch = {name: tf.constant(value, tf.int32) for name, value in integers.items()}
        batch["masked_lm_weights"] = tf.constant(np.arange(PREDICTIONS) < masked[:, None], tf.float32)
        batch["example_weights"] = tf.ones([samples])
        yield batch


def trained(config, steps=4, data=None):
    """Returns the run after some updates, and what each update reported."""
    run, step = compiled(config)
    return run, [step(batch) for batch in (data or batches(steps))]


def compiled(config):
    """Returns a run and its update."""
    run = new_run(config.resolve(1), Mesh())
    return run, TrainStep(run)


def with_compute(**changes):
    return dataclasses.replace(BASE, compute=ComputeConfig(**changes))


def accumulating(steps, config=BASE):
    return dataclasses.replace(config, batch=BatchConfig(grad_accum_steps=steps, global_batch_size=SAMPLES))


def assert_same_weights(run, other, tolerance):
    expected = states.owned(other)
    for name, value in states.owned(run).items():
        if name.startswith("master/"):
            np.testing.assert_allclose(value, expected[name], rtol=tolerance, atol=tolerance, err_msg=name)


def norms(infos):
    return np.array([float(info.grad_norm) for info in infos])


@pytest.fixture(scope="module")
def base():
    """A run with dropout, and its update of whole batches."""
    return compiled(BASE)


@pytest.fixture(scope="module")
def whole(base):
    """The run after four updates, and what they reported."""
    run, step = base
    return run, [step(batch) for batch in batches(4)]


@pytest.fixture(scope="module")
def halves():
    """Returns a run in a number format, with norms in fp32, its update of two micro-batches, and four reports."""

    @functools.cache
    def made(precision):
        model = dataclasses.replace(BASE.model, ln_dtype="fp32")
        run, step = compiled(accumulating(2, dataclasses.replace(with_compute(precision=precision), model=model)))
        return run, step, [step(batch) for batch in batches(4)]

    return made


SPARSE, XLA = {"sparse_as_dense": False}, {"jit_compile": "true"}


@pytest.mark.parametrize(
    ("steps", "compute"),
    [
        *((1, SPARSE), (3, SPARSE), (2, XLA)),
        *(pytest.param(steps, {}, marks=pytest.mark.nightly) for steps in (2, 12)),
    ],
    ids=str,
)
def test_accumulated_micro_batches_equal_one_batch_and_make_one_update(whole, steps, compute):
    run, infos = trained(accumulating(steps, with_compute(**compute)))
    assert_same_weights(run, whole[0], 1e-5)
    np.testing.assert_allclose(norms(infos), norms(whole[1]), rtol=1e-5)
    np.testing.assert_allclose([info.sums for info in infos], [info.sums for info in whole[1]], rtol=1e-5)
    assert int(run.optimizer.step) == int(run.progress.step) == 4
    assert int(run.progress.consumed_samples) == 4 * SAMPLES


def test_gradient_is_that_of_the_loss_per_masked_token_and_per_sample():
    no_dropout = dataclasses.replace(BASE.model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    run, step = compiled(accumulating(3, dataclasses.replace(BASE, model=no_dropout)))
    (batch,), model = batches(1), run.task.model
    with tf.GradientTape() as tape:
        sums = loss_sums(model, batch)
        loss = sums.mlm_sum / sums.mlm_weight + sums.nsp_sum / sums.examples
    expected = tf.linalg.global_norm(tape.gradient(loss, list(model.named_variables().values())))
    np.testing.assert_allclose(step(batch).grad_norm, expected, rtol=1e-5)


@pytest.mark.parametrize(("precision", "epsilon"), [("bf16", 2**-8), ("fp16", 2**-11)])
def test_half_precisions_follow_fp32(whole, halves, precision, epsilon):
    run, _, infos = halves(precision)
    assert float(infos[0].loss_scale) == (2**15 if precision == "fp16" else 1)  # The norm is that of no scale.
    assert ("loss_scale/scale" in run.counters()) == (precision == "fp16")
    masters, dtype = states.owned(run), {"bf16": tf.bfloat16, "fp16": tf.float16}[precision]
    for name, variable in run.task.model.named_variables().items():
        assert variable.dtype == (tf.float32 if name.endswith(("gamma", "beta")) else dtype)
        np.testing.assert_array_equal(variable, tf.cast(masters[f"master/{name}"], variable.dtype))
    # A gradient norm is a sum over many roundings of either sign: a few of them are left.
    np.testing.assert_allclose(norms(infos), norms(whole[1]), rtol=8 * epsilon)
    expected = LossSums(*np.sum([info.sums for info in whole[1]], axis=0))
    found = LossSums(*np.sum([info.sums for info in infos], axis=0))
    np.testing.assert_allclose(
        found.mlm_sum / found.mlm_weight, expected.mlm_sum / expected.mlm_weight, rtol=4 * epsilon
    )


@pytest.mark.parametrize(
    ("dtype", "epsilon"), [("bf16", 2**-8), pytest.param("fp16", 2**-11, marks=pytest.mark.nightly)]
)
def test_buffers_of_each_dtype_add_up_the_gradients(whole, dtype, epsilon):
    batch = BatchConfig(grad_accum_steps=12, global_batch_size=SAMPLES, grad_accum_dtype=dtype)
    _, infos = trained(dataclasses.replace(BASE, batch=batch), steps=1)
    assert float(infos[0].loss_scale) == (2**15 if dtype == "fp16" else 1)
    # Each of 12 additions rounds; between one and two of them are left in a norm.
    np.testing.assert_allclose(norms(infos), norms(whole[1])[:1], rtol=2 * epsilon)
    assert norms(infos)[0] != norms(whole[1])[0]


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.nightly), "fp16"])
def test_a_nan_skips_the_update_and_is_counted(halves, precision):
    run, step, _ = halves(precision)
    poisoned, before = next(batches(1)), states.owned(run.optimizer.state)
    weights = poisoned["masked_lm_weights"].numpy()
    weights[3] = np.nan
    info = step({**poisoned, "masked_lm_weights": tf.constant(weights)})
    assert bool(info.skipped)
    for name, value in states.owned(run.optimizer.state).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert (int(run.progress.step), int(run.progress.skipped_steps), int(run.progress.nan_steps)) == (5, 1, 1)
    assert np.isfinite(run.progress.interval_sums).all()
    assert float(run.loss_scale.value) == (2**14 if precision == "fp16" else 1)


def test_a_step_hands_on_the_values_of_the_one_before(whole):
    _, infos = whole
    assert not infos[0].before.numpy().any()
    for last, info in itertools.pairwise(infos):
        assert info.before.device.endswith("CPU:0")
        found = last.read(info.before.numpy())
        for name, value in last._asdict().items():
            if name not in ("before", "packed", "requests"):
                np.testing.assert_array_equal(getattr(found, name), value.numpy(), err_msg=name)


def test_nothing_of_an_update_is_reduced_on_the_host(base):
    """TensorFlow's GPU kernels of reductions over int32 have their input in the host's memory."""
    graph = base[1].traced(next(batches(1)), Requests()).graph
    functions = [graph, *(f.graph for f in graph._functions.values() if hasattr(f, "graph"))]
    nodes = [node for found in functions for node in found.as_graph_def().node]
    nodes += [node for function in graph.as_graph_def().library.function for node in function.node_def]
    reductions = [node for node in nodes if node.op in ("Max", "Min", "Sum", "Prod", "Mean", "All", "Any")]
    assert len(reductions) > 10
    assert not [node.name for node in reductions if node.attr["T"].type == tf.int32.as_datatype_enum]


@pytest.mark.parametrize(
    ("steps", "compute"),
    [
        (2, SPARSE),  # `compared` has compiled segments on two ranks.
        pytest.param(3, XLA | SPARSE, marks=pytest.mark.nightly),
        pytest.param(3, {"activation_checkpointing": "full"}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_backward_in_segments_gives_the_gradient_of_the_whole(steps, compute):
    deep = dataclasses.replace(BASE, model=dataclasses.replace(BASE.model, num_hidden_layers=2))
    segments = dataclasses.replace(deep, parallel=ParallelConfig(backward_segments=2), compute=ComputeConfig(**compute))
    (run, infos), (whole, expected) = trained(accumulating(steps, segments)), trained(deep)
    assert run.segments == 2
    assert_same_weights(run, whole, 1e-5)
    np.testing.assert_allclose(norms(infos), norms(expected), rtol=1e-5)
    np.testing.assert_allclose([info.sums for info in infos], [info.sums for info in expected], rtol=1e-5)


@pytest.mark.nightly
def test_segments_of_an_output_layer_of_its_own_send_rows_alone():
    untied = {**FAMILIES["llama"].defaults, "model_family": "llama", "vocab_size": VOCAB, "num_hidden_layers": 3}
    model = ModelConfig(**untied, hidden_size=16, num_attention_heads=2, **PLAIN)
    config = dataclasses.replace(accumulating(2, with_compute(sparse_as_dense=False)), model=model)
    data = [dict.fromkeys(("input_ids", "labels"), batch["input_ids"]) for batch in batches(2)]
    (run, infos), (other, expected) = (
        trained(dataclasses.replace(config, parallel=ParallelConfig(backward_segments=count)), data=data)
        for count in (3, 1)
    )
    assert_same_weights(run, other, 1e-6)
    np.testing.assert_allclose(norms(infos), norms(expected), rtol=1e-6)
