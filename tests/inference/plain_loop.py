"""A plain loop with `tftrain.load` and Horovod; test_keras_model.py compares its steps with those of `tftrain.run`.

python -m tests.inference.plain_loop FOLDER STEPS FLAGS...     on every rank; the flags are those of the run
"""

import json
import sys
import types
from pathlib import Path

import horovod.tensorflow as hvd
import tensorflow as tf
import tf_keras

import tftrain
from tftrain import run
from tftrain.data import pipeline
from tftrain.parallel.launcher import Launch
from tftrain.tasks import sources

BATCH = 4


class AdamW:
    """AdamW as in arXiv 1711.05101; biases and norms have no weight decay."""

    def __init__(self, settings, variables):
        self.settings, self.variables, self.step = settings, variables, tf.Variable(0.0)
        self.slots = [(tf.Variable(tf.zeros_like(each)), tf.Variable(tf.zeros_like(each))) for each in variables]

    def __call__(self, gradients):
        beta1, beta2 = self.settings.adam_beta1, self.settings.adam_beta2
        step = self.step.assign_add(1)
        for weight, gradient, (m, v) in zip(self.variables, gradients, self.slots, strict=True):
            m.assign(beta1 * m + (1 - beta1) * gradient)
            v.assign(beta2 * v + (1 - beta2) * gradient**2)
            direction = m / (1 - beta1**step) / (tf.sqrt(v / (1 - beta2**step)) + self.settings.adam_epsilon)
            if not weight.name.endswith(("bias:0", "gamma:0", "beta:0")):
                direction += self.settings.weight_decay * weight
            weight.assign_sub(self.settings.learning_rate * direction)


def main(folder: str, steps: str, *args: str) -> None:
    """Trains a classifier; rank 0 writes the losses and the model into a folder."""
    config, inputs = run.checked(*run.read(["run", *args, f"--output_dir={folder}/other"]), Launch())
    source = sources.open_source(types.SimpleNamespace(config=config), inputs.data[0], "train", config.run.seed)
    hvd.init()
    first = hvd.rank() * BATCH
    batches = pipeline.train_batches(source, config.data, config.run.seed, 0, hvd.size() * BATCH, first, first + BATCH)
    model = tftrain.load(config.run.init_checkpoint, task="classification", labels=list(config.model.labels))
    update = AdamW(config.optimizer, model.trainable_variables)
    loss_of = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(features, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(features, training=True)["logits"])
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        update(gradients)
        return hvd.allreduce(loss, name="loss")

    hvd.broadcast_variables(model.variables, root_rank=0)
    names = ("input_ids", "input_mask", "segment_ids")
    losses = [float(step({name: batch[name] for name in names}, batch["labels"])) for batch in batches.take(int(steps))]
    if hvd.rank() == 0:
        tftrain.save(model, f"tftrain:{folder}/model")
        (Path(folder) / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
