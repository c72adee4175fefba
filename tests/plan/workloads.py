"""Workloads for tests."""

from hypothesis import strategies as some

from tftrain.plan.workload import Workload

FUSED = frozenset({"ln", "softmax", "gelu", "dropout_add", "optimizer"})
GPT = Workload(
    family="megatron",
    causal=True,
    layers=12,
    hidden=768,
    heads=12,
    inner=3072,
    vocab=51200,
    seq=1024,
    positions=1024,
    predictions=1024,
    micro_batch=4,
    global_batch=64,
    precision="fp16",
    fused=FUSED,
    hidden_dropout=True,
    attention_dropout=True,
)
BERT = GPT.replaced(family="encoder", causal=False, vocab=30522, seq=128, positions=512, predictions=20)


@some.composite
def workloads(draw):
    """Any workload that multiplies out."""
    heads, layers = 8 * draw(some.integers(1, 4)), 4 * draw(some.integers(1, 6))
    hidden = heads * draw(some.sampled_from([32, 64, 72, 128]))
    micro, dp, several = draw(some.integers(1, 4)), draw(some.sampled_from([1, 2, 8])), draw(some.integers(1, 4))
    causal = draw(some.booleans())
    return draw(some.sampled_from([GPT] if causal else [BERT])).replaced(
        layers=layers,
        hidden=hidden,
        heads=heads,
        inner=4 * hidden,
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
