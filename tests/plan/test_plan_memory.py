"""Memory by kind against published formulas, by hand, and by what must hold for any workload."""

import dataclasses

import pytest
from hypothesis import given

from tests.plan.workloads import BERT, GPT, TFTRAIN, bytes_of, resized, workloads
from tftrain.bench.published import encoder, megatron
from tftrain.plan import inventory, memory
from tftrain.plan.cluster import A100
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload

BARE = Constants(reserve_gb=0.0, fragmentation=0.0, state_slack=0.0)


@pytest.mark.parametrize("heads", [12, 16])
@pytest.mark.parametrize(
    ("tp", "sequence_parallel", "core", "whole", "divided"),
    [
        # arXiv 2205.05198, equation 2: s b h (10 + 24 / t + 5 a s / (h t)) bytes in 16 bits with dropout.
        *((tp, False, True, 10, 24) for tp in (1, 2, 4)),
        # Equation 6, without the attention core: s b h (10 + 24 / t).
        (2, False, False, 10, 24),
        # Equations 4 and 6 with sequence parallelism: s b h (34 + 5 a s / h) / t, and 34 s b h / t.
        *((tp, True, core, 0, 34) for tp in (2, 4) for core in (True, False)),
    ],
)
def test_a_fused_block_keeps_what_korthikanti_et_al_count(heads, tp, sequence_parallel, core, whole, divided):
    work = resized(GPT, num_attention_heads=heads)._replace(tp=tp, sequence_parallel=sequence_parallel)
    s, b, h = work.seq, work.micro_batch, work.model.width
    expected = s * b * h * (whole + (divided + core * 5 * heads * s / h) / tp)
    assert bytes_of(megatron.block(work), core) == pytest.approx(expected, rel=1e-12)


def test_the_last_stage_of_this_project_has_the_token_embedding_without_state():
    work = TFTRAIN._replace(pp=4, dp=1)
    table = work.model.vocab * work.model.width
    block, _, head = inventory.parts(work)
    assert inventory.weights(work, 3) == work.model.layers / 4 * block.weights + head.weights + table
    assert inventory.copied_weights(work, 3) == table
    assert inventory.copied_weights(work, 0) == inventory.copied_weights(work, 1) == 0
    assert inventory.copied_weights(work._replace(pp=1), 0) == 0


def test_unequal_stages_have_their_own_layers():
    work = TFTRAIN._replace(pp=2, division=(3, 9))
    assert [work.layers_of(stage) for stage in range(2)] == [3, 9]
    block = inventory.parts(work).block.weights
    even = work._replace(division=())
    assert inventory.weights(work, 1) - inventory.weights(even, 1) == 3 * block


def test_scores_that_do_not_come_in_fours_go_through_the_plain_softmax():
    work = resized(GPT, num_attention_heads=12)._replace(tp=2, micro_batch=1)  # 6 score matrices a rank
    scores = 6 * work.seq**2 * work.item
    plain = megatron.block(work._replace(fused=work.fused - {"softmax"}))
    assert megatron.block(work) == plain
    fours = work._replace(micro_batch=2)
    dropped = megatron.block(fours._replace(fused=fours.fused - {"softmax"}))
    assert bytes_of(dropped) == bytes_of(megatron.block(fours)) + 2 * scores


def test_an_encoder_block_keeps_its_tensors_by_hand():
    work = resized(BERT, use_bias_in_keys=False)._replace(
        hidden_dropout=False, attention_dropout=False, precision="bf16"
    )
    tokens = work.micro_batch * work.seq
    stream, wide, scores = 2 * tokens * 768, 2 * tokens * 3072, 2 * work.micro_batch * 12 * 128**2
    # Input, q, k, v, context, two inputs of norms, input of the wide layer; before and after GeLU; probabilities.
    expected = 8 * stream + 2 * wide + scores
    assert bytes_of(encoder.block(work)) == expected
    # Plain ops keep more: two norms before scale and shift, two terms of GeLU; under XLA scores before the softmax.
    plain = work._replace(fused=frozenset())
    assert bytes_of(encoder.block(plain)) == expected + 2 * stream + 2 * wide
    compiled = bytes_of(encoder.block(plain._replace(compiled=True)))
    assert compiled == expected + 2 * stream + scores + 2 * wide


@pytest.mark.parametrize(
    ("precision", "stage", "bytes_a_weight"),
    [
        # arXiv 1910.02054, figure 1, with fp32 gradients on their way through the optimizer beside the 16-bit ones.
        *(("fp16", 0, 2 + 2 + 12 + 4), ("fp16", 1, 2 + 2 + (12 + 4) / 8), ("fp16", 2, 2 + (2 + 12 + 4) / 8)),
        *(("fp16", 3, (2 + 2 + 12 + 4) / 8), ("fp32", 0, 4 + 4 + 8), ("fp32", 2, 4 + (4 + 12) / 8)),
    ],
)
def test_state_is_divided_as_zero_says(precision, stage, bytes_a_weight):
    work = GPT._replace(dp=8, zero_stage=stage, precision=precision)
    found = memory.estimate(work, BARE)
    state = found.weights + found.master_weights + found.moments + found.gradients + found.temporaries
    assert state == pytest.approx(bytes_a_weight * work.model.parameters, rel=1e-6)


def test_a_fused_optimizer_spares_its_temporaries():
    plain = memory.estimate(BERT._replace(fused=frozenset()), BARE)
    assert plain.temporaries - memory.estimate(BERT, BARE).temporaries == 8 * inventory.weights(BERT)


def test_backward_ends_with_two_summands_of_the_tables_gradient():
    work = TFTRAIN._replace(checkpointing="full", micro_batch=1, global_batch=1, precision="fp32")
    assert memory.estimate(work, BARE).activations == 2 * 4 * work.model.vocab * work.model.width
    tensors = dict(memory.estimate(work._replace(checkpointing="none", micro_batch=16, global_batch=16), BARE).tensors)
    assert "block's input" in tensors
    assert not any("summands" in name for name in tensors)


@pytest.mark.parametrize("count", [2, 3, 16])
def test_the_first_stage_has_as_many_micro_batches_under_way_as_there_are_stages(count):
    work = resized(GPT, vocab_size=128)._replace(pp=4, global_batch=4 * count, checkpointing="full")
    tensors = dict(memory.estimate(work, BARE).tensors)
    entry = work.micro_batch * work.seq * work.model.width * 2
    assert tensors["inputs of blocks"] == 3 * min(4, count) * entry


def test_an_output_layer_of_its_own_needs_no_copy_of_the_embedding():
    work = Workload(*resized(GPT, model_family="llama", tie_output=False))._replace(pp=3, tp=2)
    assert [inventory.copied_weights(work, stage) for stage in range(3)] == [0, 0, 0]
    whole = sum(inventory.weights(work._replace(tp=1), stage) for stage in range(3))
    assert whole == work.model.parameters
    tied = resized(work, tie_output=True)
    assert inventory.copied_weights(tied, 2) == work.model.word.size / 2


def test_the_last_stage_counts_where_its_logits_outweigh_the_first():
    tensors = dict(memory.estimate(resized(GPT, vocab_size=10**6)._replace(pp=2), BARE).tensors)
    assert tensors["head: logits and probabilities"] == 4 * 1024 * 10**6 * (2 + 4)


def test_masked_words_have_logits_in_chunks():
    work = TFTRAIN._replace(precision="bf16", micro_batch=8, predictions=20)

    def head(work):
        return {saved.name: saved.size for saved in inventory.parts(work).head.saved}

    name, table = "logits and probabilities of a chunk", "sum of the table's gradient"
    assert head(work)[name] == encoder.head(work).saved[-1].size  # they are one chunk
    assert table not in head(work)
    many = work._replace(micro_batch=64)
    assert head(many)[name] == (2 + 8) * 256 * 30522  # 1,280 rows in five chunks
    assert head(many)[table] == 4 * 30522 * 768
    on_gpu = head(many._replace(gpu=True))  # one chunk
    assert (on_gpu[name], table in on_gpu) == ((2 + 8) * 1280 * 30522, False)
    assert head(resized(many, vocab_size=250_880))[name] == (2 + 8) * 33 * 250_880  # 39 chunks


def test_the_owner_of_the_embedding_is_the_fullest_where_layers_have_owners():
    work = BERT._replace(dp=16, zero_stage=1)
    even, naive = (memory.estimate(work._replace(split_strategy=name), BARE).moments for name in ("even", "naive"))
    embedding = inventory.parts(work).embedding.weights
    assert naive == 8 * embedding
    assert even == 8 * inventory.weights(work) / 16


@pytest.mark.parametrize("strategy", ["naive", "greedy:4"])
def test_an_owner_of_whole_tensors_receives_sums_and_not_the_tensors_of_all_ranks(strategy):
    work = TFTRAIN._replace(zero_stage=1)
    for ranks in (8, 64):
        even = memory.estimate(work._replace(dp=ranks), BARE)
        owners = memory.estimate(work._replace(dp=ranks, split_strategy=strategy), BARE)
        received = min(owners.moments / 8, memory.BUCKET)  # two fp32 moments for each number that a rank owns
        assert owners.communication == even.communication + 4 * received


@pytest.mark.parametrize(("sizes", "expected"), [({}, 1e9), ({"tp": 2}, 3e9), ({"pp": 2}, 3e9), ({"dp": 2}, 3e9)])
def test_connections_between_ranks_take_memory(sizes, expected):
    constants = Constants(reserve_gb=1.0, transport_gb=2.0)
    assert memory.estimate(GPT._replace(**sizes), constants).reserve == expected


def test_an_allocator_gives_pieces_back_before_it_fails():
    held = memory.estimate(GPT, Constants(reserve_gb=70.0, fragmentation=10.0))
    assert held.minimum < A100.memory_gb * 1e9 < held.total
    assert held.fits(A100)
    assert held.on(A100).total == pytest.approx(A100.memory_gb * 1e9)
    assert held.on(A100).minimum == held.minimum
    assert not memory.estimate(GPT, Constants(reserve_gb=90.0)).fits(A100)


@given(workloads())
def test_kinds_are_not_negative_and_add_up(work):
    found = memory.estimate(work, Constants())
    assert all(size >= 0 for size in found[:-1])
    assert found.total == pytest.approx(sum(found[:-1]))
    assert found.activations == pytest.approx(sum(size for _, size in found.tensors))


@pytest.mark.parametrize("job", [GPT, TFTRAIN])
@pytest.mark.parametrize(("gated", "key_bias"), [(False, False), (False, True), (True, False)])
def test_weights_of_one_rank_are_exactly_the_models(job, gated, key_bias):
    flags = {"activation": "geglu" if gated else "gelu", "use_bias_in_keys": key_bias}
    work = resized(job, **flags)
    assert inventory.weights(work) == work.model.parameters


@given(workloads())
def test_weights_of_all_ranks_are_the_models_and_their_copies(work):
    whole = work._replace(tp=1, pp=1)
    count = inventory.weights(whole)
    # Norms and biases of whole width, which every tensor parallel rank has, are less than a hundredth.
    assert count == pytest.approx(whole.model.parameters, rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_zero_3_has_shares_of_everything_and_some_parts_whole(precision):
    item = 4 if precision == "fp32" else 2
    work = GPT._replace(dp=8, zero_stage=3, precision=precision)
    weights, block = inventory.weights(work), inventory.parts(work).block.weights
    ends = weights - work.model.layers * block

    def state(found):
        return found.weights + found.master_weights + found.moments + found.gradients + found.accumulation

    found = memory.estimate(work, Constants())
    assert state(found) == pytest.approx((item + 4 + 8 + item) * weights / 8)
    assert found.gathered == 2 * item * (ends + 2 * block)  # weights and gradients
    # Here the masters are the weights, and gradients of 16 bits are widened one part at a time.
    found = memory.estimate(Workload(*work)._replace(accumulation="fp32"), Constants())
    assert state(found) == pytest.approx((4 + 8 + (4 if precision == "fp32" else 0) + 4) * weights / 8)
    assert found.gathered == pytest.approx(2 * item * (block + max(block, ends)))
    assert memory.estimate(work._replace(zero_stage=2), Constants()).gathered == 0


def test_blocks_that_are_gathered_ahead_are_whole_and_a_host_holds_all_of_a_state_that_it_splits():
    work = Workload(*GPT)._replace(dp=16, zero_stage=3, precision="bf16", accumulation="fp32")
    block = 2 * inventory.parts(work).block.weights
    found = {ahead: memory.estimate(work._replace(prefetch=ahead), Constants()) for ahead in (0, 1, 3, 1000)}
    assert found[1].gathered - found[0].gathered == pytest.approx(block)
    assert found[3].gathered - found[0].gathered == pytest.approx(3 * block)
    assert found[1000].gathered < 2 * 2 * inventory.weights(work)  # Not more than all of them.
    hosts, all_of_them = memory.estimate(work._replace(split_devices=8, tp=2), Constants()), found[1]
    assert work._replace(split_devices=8, tp=2).owners == 4
    assert hosts.moments == pytest.approx(8 * inventory.weights(work._replace(tp=2)) / 4)
    assert all_of_them.moments == pytest.approx(8 * inventory.weights(work) / 16)


@pytest.mark.parametrize(("mode", "pp", "lost"), [("full", 1, 3.0), ("full", 2, 0.0), ("selective", 1, 0.0)])
def test_recomputed_blocks_lose_memory_around_their_inputs(mode, pp, lost):
    work = TFTRAIN._replace(checkpointing=mode, pp=pp)
    whole, pieces = (memory.estimate(work, BARE), memory.estimate(work, dataclasses.replace(BARE, lost_pieces=3.0)))
    inputs = work.model.layers * inventory.parts(inventory.one_block(work)).block.entry
    assert pieces.total - whole.total == pytest.approx(lost * inputs)
    assert pieces.minimum - whole.minimum == pytest.approx(lost * inputs)
