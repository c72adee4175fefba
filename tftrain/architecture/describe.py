"""The architecture that a configuration names."""

import dataclasses
import functools

from tftrain.architecture import parts
from tftrain.architecture.architecture import Architecture
from tftrain.config.model import ModelConfig
from tftrain.families import rope


@functools.lru_cache(maxsize=1 << 10)
def describe(model: ModelConfig) -> Architecture:
    """Returns the architecture of a configuration with a `vocab_size`."""
    width, family = model.hidden_size, model.family
    norm = parts.NormSpec(width, family.norm, family.norm_shift)
    word = parts.TableSpec(model.vocab_size, width, divided=True)
    predicts_tokens = not model.is_fine_tuned
    tables: list[parts.Named] = []
    if model.position_embedding == "learned":
        tables.append(("position", parts.TableSpec(model.first_row + model.max_position_embeddings, width)))
    if family.token_types or family.first_token_type:
        tables.append(("token_type", parts.TableSpec(model.type_vocab_size, width)))
    return Architecture(
        word=word,
        tables=tuple(tables),
        embedding_norm=norm if family.norms_embedding or not is_pre_norm(model) else None,
        layers=model.num_hidden_layers,
        cycle=_cycle(model, norm),
        norms_first_block=not family.norms_embedding,
        final_norm=norm if is_pre_norm(model) else None,
        heads=tuple(_heads(model, norm)),
        tied=predicts_tokens and model.tie_output,
        output=word if predicts_tokens and not model.tie_output else None,
        causal=model.is_causal,
        config=model,
    )


def _cycle(model: ModelConfig, norm: parts.NormSpec) -> tuple[parts.TransformerBlockSpec, ...]:
    """Returns a global block and the local ones between it and the next global one."""
    attention = _attention(model)
    local = dataclasses.replace(attention, theta=model.local_rope_theta, window=model.local_attention // 2)
    attentions = (attention, *(model.global_attn_every - 1) * (local,)) if model.local_attention else (attention,)
    feed_forward = _feed_forward(model)
    return tuple(parts.TransformerBlockSpec(each, norm, feed_forward, norm, is_pre_norm(model)) for each in attentions)


def pretrained(model: ModelConfig) -> Architecture:
    """Returns the architecture of a configuration with the heads of pre-training; vectors of a decoder have none."""
    if model.is_causal and model.is_fine_tuned:
        return describe(model)
    return describe(dataclasses.replace(model, task="pretraining", labels=()))


def is_pre_norm(model: ModelConfig) -> bool:
    """Returns whether each sub-layer has its norm before it."""
    return model.family.pre_norm if model.norm_position == "auto" else model.norm_position == "pre"


def _residual_scale(model: ModelConfig) -> float:
    """Returns the factor of the initial weights of what is added to the residual stream.

    In a GPT it is 1 / sqrt(2 layers), as in GPT-2, so that the sum does not grow with the depth.
    """
    return (2 * model.num_hidden_layers) ** -0.5 if model.family.scales_residual else 1.0


def _attention(model: ModelConfig) -> parts.AttentionSpec:
    width, unit = model.hidden_size, model.head_size
    inner, norm = model.num_attention_heads * unit, parts.NormSpec(unit, model.family.norm, model.family.norm_shift)
    scale = _residual_scale(model)
    query = parts.DenseSpec(width, inner, bias=model.bias != "none", divided="outputs", unit=unit)
    value = dataclasses.replace(query, outputs=model.key_value_heads * unit)
    return parts.AttentionSpec(
        query=query,
        key=dataclasses.replace(value, bias=value.bias and model.use_bias_in_keys),
        value=value,
        output=parts.DenseSpec(inner, width, bias=model.bias == "all", divided="inputs", unit=unit, scale=scale),
        heads=model.num_attention_heads,
        positions=model.position_embedding,
        theta=model.rope_theta,
        scaling=rope.parse(model.rope_scaling),
        head_norm=norm if model.query_key_norm else None,
    )


def _feed_forward(model: ModelConfig) -> parts.FeedForwardSpec:
    width, inner = model.hidden_size, model.feed_forward_size
    wide = parts.DenseSpec(width, inner, bias=model.bias == "all", divided="outputs")
    down = parts.DenseSpec(inner, width, bias=wide.bias, divided="inputs", scale=_residual_scale(model))
    return parts.FeedForwardSpec(wide, down, None if model.activation == "gelu" else wide, model.activation)


def _heads(model: ModelConfig, norm: parts.NormSpec) -> list[parts.HeadSpec]:
    """Returns the heads: masked words and the next sentence, or the layer of a task."""
    width, heads = model.hidden_size, []
    if model.gives_vectors and model.embedding_dense:
        return [parts.HeadSpec("projection", (("", parts.DenseSpec(width, model.embedding_dense)),), "sample")]
    if model.is_causal:
        return heads
    # A model without a pooler has the layer and the norm of the masked words before its classifier, or a layer within.
    transforms = not model.is_fine_tuned or (model.family.transforms_for_tasks and model.outputs)
    rows = "predictions" if not model.is_fine_tuned else "sample" if model.predicts_samples else "tokens"
    if transforms:
        leaves = [("transform", parts.DenseSpec(width, width, model.bias == "all")), ("norm", norm)]
        if not model.is_fine_tuned:
            leaves.append(("bias", parts.BiasSpec(model.vocab_size)))
        heads.append(parts.HeadSpec("masked_lm", tuple(leaves), rows))
    within = model.family.classifier_activation and model.predicts_samples
    has_task = model.predicts_samples and not (within or model.family.transforms_for_tasks)
    if has_task if model.is_fine_tuned else model.next_sentence:
        heads.append(parts.HeadSpec("pooler", (("", parts.DenseSpec(width, width)),), "sample"))
    if not model.is_fine_tuned and model.next_sentence:
        heads.append(parts.HeadSpec("next_sentence", (("", parts.DenseSpec(width, 2)),), "sample"))
    elif model.outputs and model.is_fine_tuned:
        leaves = [("dense", parts.DenseSpec(width, width))] if within else []
        heads.append(parts.HeadSpec("classifier", (*leaves, ("", parts.DenseSpec(width, model.outputs))), rows))
    return heads
