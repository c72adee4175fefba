"""A stage alone: backward in two halves gives the gradients of backward at once, without XLA to the last bit."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import PLAIN
from tests.train.test_step import BASE, batches
from tftrain.config.parallel import BatchConfig
from tftrain.model.gathered_weights import ReadAgain
from tftrain.parallel.mesh import Mesh
from tftrain.schedules.table import Action, Schedule
from tftrain.schedules.table import ActionKind as Kind
from tftrain.state.new_run import new_run
from tftrain.train.gradients import Position
from tftrain.train.pipeline import StageGraph
from tftrain.train.stage import CompiledStage

MICRO_BATCHES, SAMPLES = 2, 12
F, B, BI, BW = Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUTS, Kind.BACKWARD_WEIGHTS
MODELS = {"plain": PLAIN, "fused": {**dict.fromkeys(PLAIN, "fused"), "activation": "geglu"}}
SHORT = [("plain", "selective", "xla")]


def table(*kinds):
    """Returns a schedule of one stage: all micro-batches forward, then each of the kinds for all micro-batches."""
    actions = [Action(kind, i) for kind in (F, *kinds) for i in range(MICRO_BATCHES)]
    return Schedule("gpipe", MICRO_BATCHES, 1, (tuple(actions),))


def gradients(run, stage, schedule, batch):
    @tf.function(autograph=False)
    def compute(batch):
        position = Position(tf.constant(3, tf.int64), tf.constant([7.0, 12.0]), tf.constant(1.0))
        return StageGraph(stage, run.mesh, schedule, batch, position).run()

    return compute(batch)


@pytest.mark.parametrize(
    ("model", "checkpointing", "compiler"),
    [
        pytest.param(*each, marks=[] if each in SHORT else pytest.mark.nightly)
        for each in itertools.product(MODELS, ("selective", "none"), ("graph", "xla"))
    ],
)
def test_halves_of_backward_add_up_to_the_whole(model, checkpointing, compiler):
    jit = compiler == "xla"
    config = dataclasses.replace(
        BASE,
        model=dataclasses.replace(BASE.model, num_hidden_layers=1 if jit else 2, **MODELS[model]),
        batch=BatchConfig(None, MICRO_BATCHES, SAMPLES),
        compute=dataclasses.replace(BASE.compute, activation_checkpointing=checkpointing, jit_compile=str(jit).lower()),
    ).resolve(1)
    run = new_run(config, Mesh())
    stage = CompiledStage(run.task, run.parts, jit)
    (batch,) = batches(1, samples=SAMPLES)
    whole, halves = (gradients(run, stage, table(*kinds), batch) for kinds in ((B,), (BI, BW)))
    np.testing.assert_array_equal(halves.sums, whole.sums)
    for name, one, other in zip(run.task.model.named_variables(), whole.dense, halves.dense, strict=True):
        # XLA adds up a bias's gradient in another order when it is fused with other operations.
        allowed = 1e-5 * np.linalg.norm(one) + 1e-8 if jit else 0.0
        assert np.linalg.norm(np.asarray(other) - one) <= allowed, name
        assert np.any(one) or "key/bias" in name
    reading = CompiledStage(run.task, run.parts, False, ReadAgain())
    for one, other in zip(whole.dense, gradients(run, reading, table(B), batch).dense, strict=True):
        assert np.linalg.norm(np.asarray(other) - one) <= 1e-5 * np.linalg.norm(one) + 1e-8
