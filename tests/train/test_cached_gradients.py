"""A loss that compares all samples is the same however the global batch is divided, and so are its gradients."""

import pytest
import tensorflow as tf

from tests.kit.ranks import run_ranks
from tests.tasks.test_in_batch_loss import TEMPERATURE
from tests.train.compared import CASES, JIT, SAMPLES, alone, batches, check, configured, train
from tftrain.host.units import DTYPES
from tftrain.parallel.mesh import Mesh
from tftrain.state.new_run import new_run
from tftrain.train.gradients import Position
from tftrain.train.step import TrainStep

pytestmark = pytest.mark.slow
PLAIN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FULL = {"activation_checkpointing": "full"}
SHALLOW = {"vectors": {"num_hidden_layers": 1}}
# Each kind of ranks once; the other cases of two ranks are nightly.
DAILY = ("dp2-segments", "zero3-last", "tp2-sequence-last", "pp2-last")


@pytest.mark.parametrize(("micro_batch", "precision", "tolerance"), [(4, "float64", 1e-10), (SAMPLES, "float32", 1e-6)])
def test_loss_and_gradients_are_those_of_one_batch(monkeypatch, micro_batch, precision, tolerance):
    monkeypatch.setitem(DTYPES, "fp32", precision)
    run = new_run(configured(micro_batch, others={"model": PLAIN, **SHALLOW}).resolve(1), Mesh())
    (batch,), task = batches(1), run.task
    variables = list(task.model.named_variables().values())
    with tf.GradientTape() as tape:
        first, second = tf.unstack(task.run_part(task.model.part, None, batch)["outputs"], axis=1)
        scores = tf.matmul(first, second, transpose_b=True) / TEMPERATURE
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(SAMPLES), scores))
    expected = tape.gradient(loss, variables)
    position = Position(tf.constant(0, tf.int64), tf.constant([float(SAMPLES)]), tf.constant(1.0))
    found = TrainStep(run)._compute(batch, position)
    assert float(found.sums[0]) / SAMPLES == pytest.approx(float(loss), rel=tolerance)
    largest = float(tf.linalg.global_norm(expected))
    for variable, one, other in zip(variables, found.dense, expected, strict=True):
        assert one.dtype == precision
        error, size = float(tf.norm(one - other)), float(tf.norm(other))
        assert error <= 10 * tolerance * size + tolerance * largest, (variable.name, error, size)


# The gradients of 16 micro-batches and of one are compared above.
@pytest.mark.parametrize(
    ("micro_batch", "compute", "loss"),
    [
        (2, {"sparse_as_dense": False}, {"embedding_loss": "cosent", "matryoshka_dims": "4,8"}),
        (16, {**JIT["compute"], **FULL}, {"embedding_loss": "symmetric", "negatives": 1}),
        pytest.param(SAMPLES, JIT["compute"], {}, marks=pytest.mark.nightly),
        (8, {}, {"embedding_loss": "margin_mse", "negatives": 2, "matryoshka_dims": "8"}),
    ],
    ids=str,
)
def test_no_loss_depends_on_the_micro_batch(micro_batch, compute, loss):
    others = {"compute": compute, "loss": loss, **SHALLOW}
    check("", train(configured(micro_batch, others=others)), alone(others))


@pytest.mark.parametrize(("precision", "epsilon"), [("bf16", 2**-8), ("fp16", 2**-11)])
def test_half_precisions_follow_fp32(precision, epsilon):
    run = new_run(configured(16, others={"compute": {"precision": precision}, **SHALLOW}).resolve(1), Mesh())
    for variable in run.loss_scale.state().values():
        # The first scale is too large for these gradients.
        variable.assign(tf.cast(min(variable, 256), variable.dtype))
    info = TrainStep(run)(next(batches(1)))
    # A cosine over the temperature of 1/20 has 20 roundings of one; a norm has a few more of them.
    expected = alone(SHALLOW)[0]
    assert float(info.sums[0]) == pytest.approx(expected[0], rel=20 * epsilon)
    assert float(info.grad_norm) == pytest.approx(expected[-1], rel=40 * epsilon)


@pytest.mark.multirank
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("ranks", "names"),
    [(2, DAILY), *(pytest.param(ranks, (), marks=pytest.mark.nightly) for ranks in (2, 4))],
    ids=["2-daily", "2", "4"],
)
def test_ranks_have_the_loss_of_one(ranks, names):
    output = run_ranks(ranks, ["-m", "tests.train.compared", *names], seconds=1100)
    assert [name for name in names or CASES[ranks] if f"{name} agrees" not in output] == []
