"""The functions of an exported model by name, on token ids and on texts: `OF_DECODERS` and `OF_ENCODERS` make them.

A builder takes a `ServedModel` and returns a `Signature`, or None if the model lacks what it needs.
"""

from collections.abc import Callable, Collection
from functools import partial

import tensorflow as tf

from tftrain.finetune.encoding import ExampleEncoder
from tftrain.host.user_code import CLASS
from tftrain.inference.generation import drawn
from tftrain.inference.serving.answer_graph import answers
from tftrain.inference.serving.signature import (
    GENERATED,
    PAIR,
    TEXT,
    Outputs,
    ServedModel,
    Signature,
    on_ids,
    with_a_place,
)
from tftrain.inference.trained_model import encoder_batch, most_probable
from tftrain.model import bert, key_value_cache

Builder = Callable[[ServedModel], Signature | None]
Given = tf.Tensor | None  # an input that some models lack


def fp32(x: tf.Tensor) -> tf.Tensor:
    """Returns an output as fp32."""
    return tf.cast(x, tf.float32)


def encode(source: ServedModel) -> Signature:
    """Token ids to hidden states, and the pooled first token if the model has a pooler."""
    network, has_pooler = source.model.network, source.has_pooler

    def run(input_ids: tf.Tensor, input_mask: Given = None, token_type_ids: Given = None) -> Outputs:
        hidden, pooled = network.encode(encoder_batch(input_ids, input_mask, token_type_ids))
        return {"hidden_states": fp32(hidden)} | ({"pooled": fp32(pooled)} if has_pooler else {})

    return on_ids(source, run)


def masked_lm(source: ServedModel) -> Signature | None:
    """Token ids to the logits of a masked token in each place."""
    if not source.has_masked_lm:
        return None
    network = source.model.network

    def run(input_ids: tf.Tensor, input_mask: tf.Tensor, token_type_ids: Given = None) -> Outputs:
        hidden, _ = network.encode(encoder_batch(input_ids, input_mask, token_type_ids))
        places = tf.tile(tf.range(tf.shape(input_ids)[1])[tf.newaxis], [tf.shape(input_ids)[0], 1])
        return {"logits": fp32(network.masked_lm(hidden, places))}

    return on_ids(source, run)


def next_token(source: ServedModel) -> Signature:
    """Token ids to the logits of the token after each place."""
    network = source.model.network

    def run(input_ids: tf.Tensor) -> Outputs:
        return {"logits": fp32(network.logits(network.hidden_states({"input_ids": input_ids})))}

    return on_ids(source, run)


def generate(source: ServedModel) -> Signature:
    """Token ids to the tokens that follow, as `tftrain.predict --max_new_tokens` draws them but for the random numbers.

    input_ids are those of texts, each with any tokens after its first `lengths`; temperature 0 takes the most probable
    token. The outputs are output_ids, [n, max_new_tokens], and how many of them are before the end token; the first of
    both end tokens that comes is written as the last of `Tokenizer.end_ids`.
    """
    network, model = source.model.network, source.model
    vocabulary = model.tokenizer.vocabulary if model.tokenizer else None
    words = len(vocabulary) if vocabulary else model.config.vocab_size
    other_end_id, end_id = model.tokenizer.end_ids if vocabulary else (-1, -1)

    def run(
        input_ids: tf.Tensor,
        lengths: tf.Tensor,
        max_new_tokens: tf.Tensor,
        temperature: tf.Tensor,
        top_p: tf.Tensor,
        seed: tf.Tensor,
    ) -> Outputs:
        def choose(logits: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
            logits = logits[:, :words]
            uniform = tf.random.stateless_uniform([tf.shape(logits)[0]], tf.stack([seed, step]))
            chosen = tf.cond(
                temperature > 0,
                lambda: drawn(logits, uniform, temperature, top_p=top_p),
                lambda: tf.argmax(logits, axis=1, output_type=tf.int32),
            )
            return tf.where(chosen == other_end_id, end_id, chosen)

        generated = key_value_cache.generate(network, with_a_place(input_ids), lengths, max_new_tokens, choose, end_id)
        return {"output_ids": generated, "lengths": tf.reduce_sum(tf.cast(generated != end_id, tf.int32), axis=1)}

    return Signature(run, GENERATED)


def embeddings(source: ServedModel) -> Signature | None:
    """Texts to vectors: of the first token, the mean over all tokens, the pooled first token, and that of the task."""
    network, config, has_pooler = source.model.network, source.model.config, source.has_pooler
    if source.text is None:
        return None
    read = _column(source, 0) if config.gives_vectors else source.text.examples
    read = read if config.is_fine_tuned else lambda text: encoder_batch(*source.text(text))

    def run(text: tf.Tensor) -> Outputs:
        batch = read(text)
        hidden, pooled = network.encode(batch)
        own = {"embedding": network.vectors(hidden, batch)} if config.gives_vectors else {}
        outputs = {"cls": hidden[:, 0], "mean": bert.pooled(fp32(hidden), batch["input_mask"])}
        outputs |= {"pooled": pooled} if has_pooler else {}
        return {name: fp32(x) for name, x in outputs.items()} | own

    return Signature(run, TEXT)


def _column(source: ServedModel, column: int) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """Returns what makes a batch of the texts of a column, each after its prompt."""
    model, prompt = source.model, source.model.config.prompt(column)
    unpooled = ExampleEncoder(model.tokenizer, model.max_seq_length).unpooled(model.config, column)
    return lambda text: source.text.examples(prompt + text) | {"unpooled": tf.fill([tf.size(text)], unpooled)}


def _embed_text(column: int, source: ServedModel) -> Signature | None:
    """Texts of a column to the vectors that the task compares; None for one whose prompt is that of the first."""
    network, config = source.model.network, source.model.config
    is_same = column > 0 and config.prompt(column) == config.prompt(0)
    if source.text is None or not config.gives_vectors or is_same:
        return None
    read = _column(source, column)
    return Signature(lambda text: {"embedding": network.task_outputs(read(text))}, TEXT)


def masked_tokens(source: ServedModel) -> Signature | None:
    """Texts to the candidates of each masked token; a row of the outputs is one masked token of a text."""
    network = source.model.network
    if source.text is None or not source.has_masked_lm:
        return None
    mask_id = source.model.tokenizer.vocabulary.roles.mask

    def run(text: tf.Tensor) -> Outputs:
        ids, mask = source.text(text)
        hidden, _ = network.encode(encoder_batch(ids, mask))
        places = tf.cast(tf.where(ids == mask_id), tf.int32)  # [masked tokens, 2]
        rows = places[:, 0] * tf.shape(ids)[1] + places[:, 1]
        hidden = tf.reshape(hidden, [1, -1, hidden.shape[-1]])
        named = _candidates(source, network.masked_lm(hidden, rows[tf.newaxis])[0])
        return {"text_index": places[:, 0], "position": places[:, 1], **named}

    return Signature(run, TEXT)


def next_tokens(source: ServedModel) -> Signature | None:
    """Texts to the candidates of the token after each."""
    network = source.model.network
    if source.text is None:
        return None

    def run(text: tf.Tensor) -> Outputs:
        ids, mask = source.text(text)
        x = network.hidden_states({"input_ids": ids})
        last = tf.gather(x, tf.reduce_sum(mask, axis=1) - 1, batch_dims=1)[:, tf.newaxis]
        return _candidates(source, network.logits(last)[:, 0])

    return Signature(run, TEXT)


def _candidates(source: ServedModel, logits: tf.Tensor) -> Outputs:
    tokens = source.model.tokenizer.vocabulary.tokens
    best, probabilities = most_probable(logits, len(tokens), source.top_k)
    return {"tokens": tf.gather(tf.constant(tokens), best), "probabilities": probabilities}


# Maps what the head gives, fp32, to the outputs of a signature.
Finish = Callable[[ServedModel, tf.Tensor], Outputs]
_PROBABILITIES = {"classification": tf.nn.softmax, "multi_label": tf.nn.sigmoid}


def _classes(source: ServedModel, logits: tf.Tensor) -> Outputs:
    """Returns logits and probabilities: of one of the classes, or of each by itself if a text may have several."""
    return {"logits": logits, "probabilities": _PROBABILITIES[source.model.config.task](logits)}


def _named(source: ServedModel, logits: tf.Tensor) -> Outputs:
    """Returns probabilities and the names of their classes, [n, classes] both: a row for each text, as servers want."""
    classes = tf.tile(tf.constant(source.model.config.labels)[tf.newaxis], [tf.shape(logits)[0], 1])
    return {"classes": classes, "probabilities": _classes(source, logits)["probabilities"]}


def _number(source: ServedModel, outputs: tf.Tensor) -> Outputs:
    return {"number": outputs[:, 0]}


def _on_ids(finish: Finish, tasks: Collection[str], source: ServedModel) -> Signature | None:
    """Returns a signature on token ids if the model was fine-tuned for one of the tasks; CLASS is any custom one."""
    network, config = source.model.network, source.model.config
    if (CLASS if config.is_custom else config.task) not in tasks:
        return None

    def run(input_ids: tf.Tensor, input_mask: tf.Tensor, token_type_ids: Given = None) -> Outputs:
        outputs = network.task_outputs(encoder_batch(input_ids, input_mask, token_type_ids))
        return finish(source, fp32(outputs))

    return on_ids(source, run)


def _on_text(
    finish: Finish, tasks: Collection[str], inputs: tuple[tf.TensorSpec, ...], source: ServedModel
) -> Signature | None:
    """Returns a signature on texts if the model was fine-tuned for one of the tasks and its tokenizer has ops."""
    network, text_graph = source.model.network, source.text
    if text_graph is None or source.model.config.task not in tasks:
        return None

    def run(**texts: tf.Tensor) -> Outputs:
        batch = text_graph.examples(*(texts[spec.name] for spec in inputs))
        return finish(source, fp32(network.task_outputs(batch)))

    return Signature(run, inputs)


OF_DECODERS: dict[str, Builder] = {
    "encode": encode,
    "next_token": next_token,
    "generate": generate,
    "next_tokens": next_tokens,
}
OF_ENCODERS: dict[str, Builder] = {
    "encode": encode,
    "masked_lm": masked_lm,
    "embeddings": embeddings,
    "masked_tokens": masked_tokens,
    "classify": partial(_on_ids, _classes, _PROBABILITIES),
    "classify_text": partial(_on_text, _named, _PROBABILITIES, TEXT),
    "classify_pair": partial(_on_text, _named, _PROBABILITIES, PAIR),
    "regress": partial(_on_ids, _number, ("regression",)),
    "regress_text": partial(_on_text, _number, ("regression",), TEXT),
    "regress_pair": partial(_on_text, _number, ("regression",), PAIR),
    "classify_tokens": partial(_on_ids, lambda _, logits: {"logits": logits}, ("token_classification",)),
    "numbers": partial(_on_ids, lambda _, x: {"numbers": x}, (CLASS,)),
    # The logits of both ends of an answer, [n, S] each.
    "answer": partial(
        _on_ids, lambda _, x: {"start_logits": x[..., 0], "end_logits": x[..., 1]}, ("question_answering",)
    ),
    "answer_text": answers,
    # Vectors, [n, D]: what the task compares. Those of token ids have no prompt but what the ids say, which is pooled.
    "embed": partial(_on_ids, lambda _, x: {"embedding": x}, ("embedding",)),
    "embed_text": partial(_embed_text, 0),
    "embed_text_pair": partial(_embed_text, 1),
}


def signatures(source: ServedModel) -> dict[str, Signature]:
    """Returns the signatures that a model can have, by name."""
    config = source.model.config
    builders = OF_DECODERS if config.is_causal and not config.is_fine_tuned else OF_ENCODERS
    built = {name: build(source) for name, build in builders.items()}
    return {name: signature for name, signature in built.items() if signature is not None}
