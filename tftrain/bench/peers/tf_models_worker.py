"""The process that runs tf-models' training step when asked: BertPretrainerV2, its losses, its LAMB.

The step is that of `official.nlp.tasks.masked_lm.MaskedLMTask`, without its metrics. LAMB comes from
`official.nlp.optimization`; it does not clip, which is less work than tftrain does.
"""

from collections.abc import Callable
from typing import Any

from tftrain.bench.peers import task
from tftrain.bench.worker import serve

POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16"}
STEPS = 1_000_000


def build(settings: dict[str, Any]) -> Callable[[int], list[float]]:
    """Builds the step; settings hold task, batches, precision, threads and jit (XLA compiles the whole step)."""
    import tensorflow as tf
    import tf_keras
    from official.nlp import optimization

    tf.config.threading.set_intra_op_parallelism_threads(settings["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(max(2, settings["threads"]))
    tf_keras.mixed_precision.set_global_policy(POLICIES[settings["precision"]])
    model = make_model()
    optimizer = optimization.create_optimizer(task.LEARNING_RATE, STEPS, 0, optimizer_type="lamb")
    inputs = [_inputs(batch) for batch in task.batches(settings)]
    model(inputs[0], training=True)
    # A step that XLA compiles cannot make variables.
    optimizer._create_all_weights(model.trainable_variables)
    cross_entropy = tf_keras.losses.sparse_categorical_crossentropy

    @tf.function(jit_compile=settings["jit"])
    def step(inputs: dict[str, Any]):
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            logits = tf.cast(outputs["mlm_logits"], tf.float32)
            losses = cross_entropy(inputs["masked_lm_ids"], logits, from_logits=True)
            weights = inputs["masked_lm_weights"]
            loss = tf.math.divide_no_nan(tf.reduce_sum(losses * weights), tf.reduce_sum(weights))
            pairs = tf.cast(outputs["next_sentence"], tf.float32)
            loss += tf.reduce_mean(cross_entropy(inputs["next_sentence_labels"], pairs, from_logits=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))
        return loss

    return task.turns(lambda batch: float(step(batch).numpy()), inputs)


def make_model():
    """Returns BERT base with both heads."""
    import tensorflow as tf
    from official.nlp.modeling import layers, models, networks

    def activation(x: Any):
        return tf.nn.gelu(x, approximate=True)

    layers_, width, heads, inner = task.SIZES[task.BERT].values()
    encoder = networks.BertEncoderV2(
        vocab_size=task.VOCAB,
        hidden_size=width,
        num_layers=layers_,
        num_attention_heads=heads,
        max_sequence_length=512,
        type_vocab_size=2,
        inner_dim=inner,
        inner_activation=activation,
        output_dropout=task.DROPOUT,
        attention_dropout=task.DROPOUT,
    )
    head = layers.ClassificationHead(width, num_classes=2, dropout_rate=task.DROPOUT, name="next_sentence")
    return models.BertPretrainerV2(encoder, mlm_activation=activation, classification_heads=[head])


def _inputs(batch: task.Batch):
    """Returns a batch in the standard format as the model's arguments."""
    import tensorflow as tf

    names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
    return {names.get(name, name): tf.constant(value) for name, value in batch.items()}


if __name__ == "__main__":
    serve(build)
