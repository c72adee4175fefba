"""Workloads for tests."""

import dataclasses

from hypothesis import strategies as some

from tftrain.architecture.describe import describe
from tftrain.bench.published.software import EncoderJob, Megatron
from tftrain.config.model import ModelConfig
from tftrain.plan.workload import Workload

FUSED = frozenset({"ln", "softmax", "gelu", "dropout_add", "optimizer"})
GPT = Megatron(
    model=describe(ModelConfig(model_family="gpt", vocab_size=51200, max_position_embeddings=1024)),
    seq=1024,
    predictions=1024,
    micro_batch=4,
    global_batch=64,
    precision="fp16",
    fused=FUSED,
    hidden_dropout=True,
    attention_dropout=True,
)
BERT = EncoderJob(*GPT)._replace(model=describe(ModelConfig(vocab_size=30522)), seq=128, predictions=20)
TFTRAIN = Workload(*BERT)


def resized(work, **flags):
    """Returns a workload whose model has other values of some flags."""
    return work._replace(model=describe(dataclasses.replace(work.model.config, **flags)))


@some.composite
def workloads(draw):
    """Any workload that multiplies out."""
    heads, layers = 8 * draw(some.integers(1, 4)), 4 * draw(some.integers(1, 6))
    hidden = heads * draw(some.sampled_from([32, 64, 72, 128]))
    micro, dp, several = draw(some.integers(1, 4)), draw(some.sampled_from([1, 2, 8])), draw(some.integers(1, 4))
    causal = draw(some.booleans())
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return resized(GPT if causal else BERT, **sizes, intermediate_size=4 * hidden)._replace(
        seq=draw(some.sampled_from([128, 512])),
        micro_batch=micro,
        global_batch=micro * dp * several,
        dp=dp,
        tp=draw(some.sampled_from([1, 2, 8])),
        pp=draw(some.sampled_from([1, 2, 4])) if causal else 1,
        precision=draw(some.sampled_from(["fp32", "fp16", "bf16"])),
        fused=draw(some.sampled_from([FUSED, frozenset()])),
        checkpointing=draw(some.sampled_from(["none", "selective", "full"])),
        zero_stage=draw(some.integers(0, 3)),
        accumulation=draw(some.sampled_from(["", "fp32"])) if not causal else "",
        compiled=draw(some.booleans()),
    )


def bytes_of(part, core=True):
    """Returns the bytes that a part saves for backward, with or without those of the attention core."""
    return float(sum(tensor.size for tensor in part.saved if core or not tensor.core))
