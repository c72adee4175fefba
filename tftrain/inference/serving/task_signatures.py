"""The functions of an exported model that was fine-tuned, by name: on token ids and, for whole texts, on strings."""

from collections.abc import Callable

import tensorflow as tf

from tftrain.inference.serving.answer_graph import AnswerGraph
from tftrain.inference.serving.signature import TEXT, Builder, Signature, Source, fp32
from tftrain.inference.trained_model import encoder_batch
from tftrain.model.bert import embeddings

PAIR = (*TEXT, tf.TensorSpec([None], tf.string, "text_pair"))
QUESTION = (tf.TensorSpec([None], tf.string, "question"), tf.TensorSpec([None], tf.string, "context"))
_PROBABILITIES = {"classification": tf.nn.softmax, "multi_label": tf.nn.sigmoid}

Outputs = dict[str, tf.Tensor]
# Maps what the head gives, fp32, and input_mask to the outputs of a signature.
Finish = Callable[[tf.Tensor, tf.Tensor], Outputs]


def classify(source: Source) -> Signature | None:
    """Token ids to the logits and the probability of each class; see `_probabilities`."""
    return _on_ids(source, lambda logits, mask: {"logits": logits} | _probabilities(source, logits), *_PROBABILITIES)


def classify_text(source: Source) -> Signature | None:
    """Texts to the probability of each class, and the classes."""
    return _on_text(source, TEXT, lambda logits, _: _named(source, logits), *_PROBABILITIES)


def classify_pair(source: Source) -> Signature | None:
    """Pairs of texts to the probability of each class, and the classes."""
    return _on_text(source, PAIR, lambda logits, _: _named(source, logits), *_PROBABILITIES)


def regress(source: Source) -> Signature | None:
    """Token ids to numbers, [n]."""
    return _on_ids(source, _number, "regression")


def regress_text(source: Source) -> Signature | None:
    """Texts to numbers, [n]."""
    return _on_text(source, TEXT, _number, "regression")


def regress_pair(source: Source) -> Signature | None:
    """Pairs of texts to numbers, [n]."""
    return _on_text(source, PAIR, _number, "regression")


def classify_tokens(source: Source) -> Signature | None:
    """Token ids to the logits of each token's classes, [n, S, classes]."""
    return _on_ids(source, lambda logits, _: {"logits": logits}, "token_classification")


def answer(source: Source) -> Signature | None:
    """Token ids to the logits of both ends of an answer, [n, S] each."""
    return _on_ids(
        source, lambda logits, _: {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}, "question_answering"
    )


def answer_text(source: Source) -> Signature | None:
    """Questions and contexts to answers, with their places in the context; see `AnswerGraph`."""
    if source.text is None or source.model.config.task != "question_answering":
        return None
    return Signature(AnswerGraph(source.model, source.text, source.null_score_threshold, source.top_k), QUESTION)


def embed(source: Source) -> Signature | None:
    """Token ids to vectors of length 1, [n, H]: what the task compares."""
    return _on_ids(source, lambda hidden, mask: {"embedding": embeddings(hidden, mask)}, "embedding")


BUILDERS: dict[str, Builder] = {
    each.__name__: each
    for each in (
        classify,
        classify_text,
        classify_pair,
        regress,
        regress_text,
        regress_pair,
        classify_tokens,
        answer,
        answer_text,
        embed,
    )
}


def _on_ids(source: Source, finish: Finish, *tasks: str) -> Signature | None:
    """Returns a signature on token ids if the model was fine-tuned for one of the tasks."""
    network = source.model.network
    if source.model.config.task not in tasks:
        return None

    def run(input_ids, input_mask, token_type_ids=None):
        return finish(fp32(network.task_outputs(encoder_batch(input_ids, input_mask, token_type_ids))), input_mask)

    return Signature(run, source.ids)


def _on_text(source: Source, inputs: tuple[tf.TensorSpec, ...], finish: Finish, *tasks: str) -> Signature | None:
    """Returns a signature on texts if the model was fine-tuned for one of the tasks and its tokenizer has ops."""
    network, text_graph = source.model.network, source.text
    if text_graph is None or source.model.config.task not in tasks:
        return None

    def run(**texts):
        batch = text_graph.examples(*(texts[spec.name] for spec in inputs))
        return finish(fp32(network.task_outputs(batch)), batch["input_mask"])

    return Signature(run, inputs)


def _probabilities(source: Source, logits: tf.Tensor) -> Outputs:
    """Returns probabilities: of one of the classes, or of each class by itself if a text may have several."""
    return {"probabilities": _PROBABILITIES[source.model.config.task](logits)}


def _named(source: Source, logits: tf.Tensor) -> Outputs:
    """Returns probabilities and the names of their classes, [n, classes] both: a row for each text, as servers want."""
    classes = tf.tile(tf.constant(source.model.config.labels)[tf.newaxis], [tf.shape(logits)[0], 1])
    return {"classes": classes} | _probabilities(source, logits)


def _number(outputs: tf.Tensor, mask: tf.Tensor) -> Outputs:
    return {"number": outputs[:, 0]}
