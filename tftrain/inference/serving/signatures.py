"""The functions of an exported model by name: each is made by a builder, and a task adds its own to `BUILDERS`.

A builder takes a `Source` and returns a `Signature`, or None if the model lacks what it needs.
"""

import tensorflow as tf

from tftrain.inference.serving import task_signatures
from tftrain.inference.serving.signature import TEXT, Builder, Signature, Source, fp32
from tftrain.inference.trained_model import MASK, TrainedModel, encoder_batch, most_probable
from tftrain.model import bert


def _has_pooler(model: TrainedModel) -> bool:
    return model.config.has_pooler and "pooler" not in model.missing


def _has_masked_lm(model: TrainedModel) -> bool:
    return not (model.config.is_decoder or model.config.is_fine_tuned or "masked_lm" in model.missing)


def encode(source: Source) -> Signature:
    """Token ids to hidden states, and the pooled first token if the model has a pooler."""
    network, has_pooler = source.model.network, _has_pooler(source.model)

    def run(input_ids, input_mask=None, token_type_ids=None):
        hidden, pooled = network.encode(encoder_batch(input_ids, input_mask, token_type_ids))
        outputs = {"hidden_states": fp32(hidden)}
        return outputs | ({"pooled": fp32(pooled)} if has_pooler else {})

    return Signature(run, source.ids)


def masked_lm(source: Source) -> Signature | None:
    """Token ids to the logits of a masked token in each place."""
    network = source.model.network
    if not _has_masked_lm(source.model):
        return None

    def run(input_ids, input_mask, token_type_ids=None):
        hidden, _ = network.encode(encoder_batch(input_ids, input_mask, token_type_ids))
        places = tf.range(tf.shape(input_ids)[1])[tf.newaxis]
        places = tf.tile(places, [tf.shape(input_ids)[0], 1])
        return {"logits": fp32(network.masked_lm(hidden, places))}

    return Signature(run, source.ids)


def next_token(source: Source) -> Signature | None:
    """Token ids to the logits of the token after each place."""
    network = source.model.network
    if not source.model.config.is_decoder:
        return None

    def run(input_ids):
        return {"logits": fp32(network.logits(network.hidden_states({"input_ids": input_ids})))}

    return Signature(run, source.ids)


def embeddings(source: Source) -> Signature | None:
    """Texts to vectors: of the first token, the mean over all tokens, and the pooled first token."""
    network, has_pooler = source.model.network, _has_pooler(source.model)
    if source.text is None or source.model.config.is_decoder:
        return None

    def run(text):
        batch = source.text.examples(text) if source.model.config.is_fine_tuned else encoder_batch(*source.text(text))
        hidden, pooled = network.encode(batch)
        hidden, mask = fp32(hidden), batch["input_mask"]
        weights = tf.cast(mask, tf.float32)[:, :, tf.newaxis]
        mean = tf.reduce_sum(hidden * weights, axis=1) / tf.reduce_sum(weights, axis=1)
        outputs = {"cls": hidden[:, 0], "mean": mean} | ({"pooled": fp32(pooled)} if has_pooler else {})
        return outputs | (
            {"embedding": bert.embeddings(hidden, mask)} if source.model.config.task == "embedding" else {}
        )

    return Signature(run, TEXT)


def masked_tokens(source: Source) -> Signature | None:
    """Texts to the candidates of each masked token; a row of the outputs is one masked token of a text."""
    network = source.model.network
    if source.text is None or not _has_masked_lm(source.model):
        return None
    mask_id = source.model.tokenizer.vocabulary.id(MASK)

    def run(text):
        ids, mask = source.text(text)
        hidden, _ = network.encode(encoder_batch(ids, mask))
        places = tf.cast(tf.where(ids == mask_id), tf.int32)  # [masked tokens, 2]
        rows = places[:, 0] * tf.shape(ids)[1] + places[:, 1]
        hidden = tf.reshape(hidden, [1, -1, hidden.shape[-1]])
        logits = network.masked_lm(hidden, rows[tf.newaxis])[0]
        best, probabilities = most_probable(logits, source.tokens.shape[0], source.top_k)
        named = {"tokens": tf.gather(source.tokens, best), "probabilities": probabilities}
        return {"text_index": places[:, 0], "position": places[:, 1], **named}

    return Signature(run, TEXT)


def next_tokens(source: Source) -> Signature | None:
    """Texts to the candidates of the token after each."""
    network = source.model.network
    if source.text is None or not source.model.config.is_decoder:
        return None

    def run(text):
        ids, mask = source.text(text)
        x = network.hidden_states({"input_ids": ids})
        last = tf.gather(x, tf.reduce_sum(mask, axis=1) - 1, batch_dims=1)[:, tf.newaxis]
        best, probabilities = most_probable(network.logits(last)[:, 0], source.tokens.shape[0], source.top_k)
        return {"tokens": tf.gather(source.tokens, best), "probabilities": probabilities}

    return Signature(run, TEXT)


BUILDERS: dict[str, Builder] = {
    "encode": encode,
    "masked_lm": masked_lm,
    "next_token": next_token,
    "embeddings": embeddings,
    "masked_tokens": masked_tokens,
    "next_tokens": next_tokens,
    **task_signatures.BUILDERS,
}


def signatures(source: Source) -> dict[str, Signature]:
    """Returns the signatures that a model can have, by name."""
    made = {name: build(source) for name, build in BUILDERS.items()}
    return {name: signature for name, signature in made.items() if signature is not None}
