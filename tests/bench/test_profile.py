"""Operations of a step by the part of the model that they belong to."""

import pytest

from tftrain.bench import profile
from tftrain.bench.config import BenchConfig

MODEL = "StatefulPartitionedCall/block_1"
BACK = "StatefulPartitionedCall/gradient_tape/block_1"
UPDATE = "StatefulPartitionedCall_1"


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (f"{MODEL}/self_attention_1/dense_6/BiasAdd:_MklNativeFusedMatMul", "matrix products"),
        (f"{BACK}/self_attention_1/MatMul/MatMul:_MklBatchMatMulV2", "matrix products"),
        (f"{MODEL}/layer_norm_4/Square:Square", "LayerNorm"),
        (f"{BACK}/layer_norm_4/mul_1/Mul:Mul", "LayerNorm"),
        (f"{MODEL}/layer_norm_4/Cast:Cast", "casts"),
        (f"{MODEL}/TftrainLayerNorm:TftrainLayerNorm", "LayerNorm"),
        (f"{BACK}/TftrainRmsNormGrad:TftrainRmsNormGrad", "LayerNorm"),
        (f"{MODEL}/feed_forward_1/TftrainSwiglu:TftrainSwiglu", "GeLU"),
        (f"{BACK}/self_attention_1/TftrainFlashAttentionGrad:TftrainFlashAttentionGrad", "attention core"),
        (f"{MODEL}/self_attention_1/Softmax:_MklSoftmax", "softmax"),
        (f"{BACK}/self_attention_1/Sum:Sum", "softmax"),
        (f"{MODEL}/feed_forward_1/Sigmoid:Sigmoid", "GeLU"),
        (f"{BACK}/feed_forward_1/mul_1/Mul_1:Mul", "GeLU"),
        (f"{BACK}/feed_forward_1/dense_10/BiasAdd/BiasAddGrad:BiasAddGrad", "bias gradients"),
        (f"{MODEL}/StatelessRandomUniformFullIntV2:StatelessRandomUniformFullIntV2", "dropout and random numbers"),
        (f"{MODEL}/mul_1:Mul", "dropout and random numbers"),
        (f"{MODEL}/add:AddV2", "residual adds and gradient sums"),
        (f"{MODEL}/self_attention_1/transpose:_MklTranspose", "transposes"),
        ("StatefulPartitionedCall/SparseSoftmaxCrossEntropyWithLogits/x:SparseSoftmaxCrossEntropyWithLogits", "loss"),
        ("StatefulPartitionedCall/gradient_tape/SparseSoftmaxCrossEntropyWithLogits/mul:Mul", "loss"),
        ("StatefulPartitionedCall/UnsortedSegmentSum:UnsortedSegmentSum", "embedding lookups"),
        (f"{UPDATE}/mul_54:Mul", "optimizer"),
        (f"{UPDATE}/Cast_3:Cast", "optimizer"),
        ("ReadVariableOp:ReadVariableOp", "other"),
    ],
)
def test_kinds(event, kind):
    assert profile.kind_of(profile.parse(event), {UPDATE}) == kind


@pytest.mark.parametrize("event", ["ExecutorState::Process", "__call__", f"{UPDATE}:StatefulPartitionedCall"])
def test_events_that_only_call_operations_are_left_out(event):
    assert profile.parse(event) is None


def test_the_update_is_the_call_without_the_model():
    ops = [profile.parse(event) for event in (f"{MODEL}/add:AddV2", "StatefulPartitionedCall/x:Mul", f"{UPDATE}/y:Mul")]
    assert profile.update_scopes(ops) == {UPDATE}


def test_an_operation_takes_the_least_of_its_times():
    events = [
        (f"{MODEL}/add:AddV2", 3.0),
        (f"{MODEL}/add:AddV2", 1.0),
        (f"{UPDATE}/m:Mul", 4.0),
        (f"{UPDATE}/m:Mul", 3),
    ]
    first, second, total = profile.summary(events, steps=2)
    assert (first["kind"], first["thread_ms"], first["share"], first["ops"]) == ("optimizer", 3.0, 0.75, 1)
    assert (second["kind"], second["thread_ms"]) == ("residual adds and gradient sums", 1.0)
    assert (total["kind"], total["thread_ms"], total["ops"]) == ("total", 4.0, 2)


@pytest.mark.nightly
def test_a_small_step_is_profiled_and_nearly_all_of_it_is_known():
    small = "--num_hidden_layers=2 --hidden_size=64 --num_attention_heads=2 --vocab_size=101"
    (outcome,) = profile.PROFILE.measure(
        [profile.PROFILE.rows[0]], BenchConfig(steps=2, extra_flags=small), lambda _: None
    )
    assert outcome.error is None
    share = {record["kind"]: record["share"] for record in outcome.records}
    assert {"matrix products", "optimizer"} <= set(share)
    assert share.get("other", 0) < 0.2
