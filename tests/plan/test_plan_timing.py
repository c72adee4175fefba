"""Time by kind: collectives and pipelines by hand, and what must hold for any workload."""

import dataclasses

import pytest
from hypothesis import given

from tests.plan.workloads import BERT, GPT, TFTRAIN, resized, workloads
from tftrain.bench.config import run_config
from tftrain.bench.published.software import EncoderJob
from tftrain.cli import flags
from tftrain.config.model import FUSED_OPS
from tftrain.config.train import TrainConfig
from tftrain.plan import forecast, inventory, timing, traffic
from tftrain.plan.cluster import A100, CLUSTERS
from tftrain.plan.system import Constants, of_trainer
from tftrain.plan.workload import Workload, from_config

# 4 devices a node at 1 GB/s to each other, 2 GB/s to other nodes, no latency.
SLOW = dataclasses.replace(A100, per_node=4, network_latency=0.0)
SPEED = traffic.Rates(memory=1e12, link=1e9, network=2e9)
INSTANT = Constants(launch_us=0.0, wait_us=0.0, batch_ms=0.0, step_ms=0.0, transfer=0.0)


@pytest.mark.parametrize(
    ("ranks", "stride", "seconds"),
    [
        (1, 1, 0.0),
        (2, 1, 1.0),  # 2 * 1/2 bytes over the link
        (4, 1, 1.5),
        (2, 2, 1.0),
        # 2 nodes: 3/2 in the node, then 2 * 1/2 of its one group over 2 GB/s.
        (8, 1, 1.5 + 0.5),
        # Neighbours 2 apart: 2 of a group in a node, 2 groups there that share the network.
        (8, 2, 1.0 + 2 * 3 / 4 * 2 / 2),
        # Neighbours in other nodes: 4 groups in each node.
        (2, 4, 4 / 2),
    ],
)
def test_sums_of_a_gigabyte(ranks, stride, seconds):
    assert traffic.all_reduce(1e9, ranks, stride, SLOW, SPEED) == pytest.approx(seconds)


def test_transfers_share_the_network_of_their_node():
    slow = dataclasses.replace(SLOW, network_gbs=2)
    assert traffic.transfer(1e9, slow) == pytest.approx(4 / 2)


@pytest.mark.parametrize("count", [4, 16, 64])
def test_the_bubble_is_stages_less_one_by_micro_batches(count):
    # arXiv 2104.04473, section 2.2.1, where blocks are all there is.
    work = resized(GPT, vocab_size=8)._replace(pp=4, global_batch=4 * count, tp=1)
    found = timing.step(work, dataclasses.replace(A100, network_gbs=1e9, network_latency=0.0), INSTANT)
    passes = found.products + found.kernels
    assert found.bubble / passes == pytest.approx(3 / count, rel=0.03)


def test_whole_checkpointing_adds_one_forward_pass_of_the_blocks():
    work = resized(GPT, hidden_size=2048, intermediate_size=8192, num_attention_heads=16)
    plain, full = (timing.step(work._replace(checkpointing=mode), A100, INSTANT) for mode in ("none", "full"))
    block = timing.passes(inventory.parts(work).block, work, A100, INSTANT)
    assert full.total - plain.total == pytest.approx(work.micro_batches * work.model.layers * block.forward.total)


def test_whole_checkpointing_launches_every_block_again():
    work = resized(GPT, hidden_size=8192, intermediate_size=32768, num_attention_heads=64)._replace(
        checkpointing="full"
    )  # the device is slower than the host
    launching = dataclasses.replace(INSTANT, launch_us=1.0)
    more = timing.step(work, A100, launching).total - timing.step(work, A100, INSTANT).total
    launches = sum(kernel.launches[0] for kernel in inventory.parts(work).block.kernels)
    assert more == pytest.approx(work.micro_batches * work.model.layers * launches * 1e-6)


def test_the_host_counts_where_it_is_slower_than_the_device():
    slow = dataclasses.replace(INSTANT, launch_us=1e4)
    found = timing.step(BERT, A100, slow)
    launches = sum(sum(kernel.launches) for kernel in inventory.parts(BERT).block.kernels)
    assert found.products + found.kernels + found.host > BERT.micro_batches * BERT.model.layers * launches * 1e-2
    assert timing.step(BERT, A100, INSTANT).host == 0


OURS = TFTRAIN._replace(precision="fp32", micro_batch=4, global_batch=16, dp=2)


@pytest.mark.parametrize(("software", "share"), [(Workload, 1 / 2 + 1 / 2), (EncoderJob, 1 + 1 / 2)])
def test_this_projects_owners_get_their_part_of_the_sum_alone(software, share):
    # Half of a sum's traffic brings each its part, and half brings the new weights back.
    one = software(*OURS)._replace(global_batch=OURS.dp * OURS.micro_batch)
    whole, divided = (timing.step(one._replace(zero_stage=stage), SLOW, INSTANT).gradient_sums for stage in (0, 1))
    assert divided == pytest.approx(share * whole)


def test_every_micro_batch_reads_a_gradient_and_the_sum_and_writes_the_sum():
    once, summed = (timing.step(OURS._replace(accumulation=dtype), A100, INSTANT).kernels for dtype in ("", "bf16"))
    bandwidth = INSTANT.memory_rate * A100.memory_gbs * 1e9
    weights = inventory.weights(OURS)
    assert summed - once == pytest.approx(2 * (4 + 2 + 2) * weights / bandwidth)


@given(workloads())
def test_kinds_are_not_negative_and_add_up(work):
    found = timing.step(work, A100, Constants())
    assert all(seconds >= -1e-12 for seconds in found)
    assert found.total == pytest.approx(sum(found))


def test_segments_hide_all_sums_but_the_last_ones_behind_backward():
    work = OURS._replace(dp=8)
    whole, halves, eighths = (timing.step(work._replace(segments=count), SLOW, INSTANT) for count in (1, 2, 8))
    assert whole.gradient_sums > halves.gradient_sums > eighths.gradient_sums > 0
    # The sums of each segment hide behind the others' backward, as long as that takes.
    hidden = whole.gradient_sums - halves.gradient_sums
    assert whole.gradient_sums - eighths.gradient_sums == pytest.approx(hidden * (7 / 8) / (1 / 2))
    assert timing.step(work._replace(dp=1, segments=8), SLOW, INSTANT).gradient_sums == 0


def test_a_compiled_step_of_several_ranks_has_segments():
    given = ["tftrain.run", "--synthetic_data", "--vocab_size=30522", "--output_dir=x"]
    config = flags.parse(TrainConfig, given).resolve(8)
    jobs = ((8, True), (1, True), (8, False))
    assert [from_config(config, dp, gpu=gpu).backward_segments for dp, gpu in jobs] == [8, 1, 1]


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ("--precision=bf16", 4),
        ("--precision=bf16 --gradient_transport=xla", 2),
        ("--precision=fp16 --gradient_transport=xla", 4),
        ("--precision=bf16 --gradient_transport=xla --grad_accum_steps=2", 4),
        ("--precision=fp32 --gradient_transport=xla --grad_accum_steps=2 --grad_accum_dtype=bf16", 2),
    ],
)
def test_sums_of_xla_send_gradients_as_they_are_and_hide_as_segments_do(more, size):
    given = ["tftrain.run", "--synthetic_data", "--vocab_size=30522", "--output_dir=x", *more.split()]
    work = from_config(flags.parse(TrainConfig, given).resolve(8), 8, gpu=True)
    assert (inventory.wire_bytes(work), work.backward_segments) == (size, 8)
    fp32 = timing.step(work._replace(wire="fp32"), SLOW, INSTANT).gradient_sums
    assert (timing.step(work, SLOW, INSTANT).gradient_sums < fp32) == (size < 4)


# Ranks of one node, whose weights are sent in 16 bits and gradients in fp32.
SHARDED = GPT._replace(dp=4, zero_stage=3, global_batch=32, wire="fp32")


def gathered_seconds(work, link):
    """Returns the seconds to gather all weights of a block on `link` bytes/s, and of what is beside the blocks."""
    block, share = inventory.parts(work).block.weights, (work.dp - 1) / work.dp
    ends = inventory.weights(work) - work.model.layers * block
    return block * work.item * share / link, ends * work.item * share / link


def test_on_slow_links_zero_3_waits_for_its_traffic_but_not_for_what_other_blocks_compute_meanwhile():
    slow = dataclasses.replace(SLOW, link_gbs=1e-3)
    found = timing.step(SHARDED, slow, INSTANT)
    block, ends = gathered_seconds(SHARDED, 1e6 * INSTANT.link_rate)
    passes, layers = timing.passes(inventory.parts(SHARDED).block, SHARDED, slow, INSTANT), SHARDED.model.layers
    # Gathered for forward and, but for one, for backward; gradients have twice the bytes.
    traffic_of_one = (layers + layers - 1) * block + ends + 2 * (layers * block + ends)
    hidden = (layers - 1) * (passes.forward.total + passes.backward.total)
    assert found.gradient_sums == pytest.approx(SHARDED.micro_batches * (traffic_of_one - hidden))


def test_on_fast_links_zero_3_waits_for_the_first_block_and_the_ends_alone():
    fast = dataclasses.replace(SLOW, link_gbs=1000)
    block, ends = gathered_seconds(SHARDED, 1e12 * INSTANT.link_rate)
    found = timing.step(SHARDED, fast, INSTANT)
    assert found.gradient_sums == pytest.approx(SHARDED.micro_batches * 3 * (block + ends))


def test_without_prefetch_zero_3_waits_for_each_gather_and_with_more_for_no_fewer_bytes():
    def seconds(link_gbs, prefetch):
        slow = dataclasses.replace(SLOW, link_gbs=link_gbs)
        return timing.step(SHARDED._replace(prefetch=prefetch), slow, INSTANT).gradient_sums

    # On a fast link all but the first block's gathers would be hidden, in forward and in backward.
    block, _ = gathered_seconds(SHARDED, 1e12 * INSTANT.link_rate)
    hidden = 2 * (SHARDED.model.layers - 1) * block
    assert seconds(1000, 0) - seconds(1000, 1) == pytest.approx(SHARDED.micro_batches * hidden)
    assert seconds(1000, 2) == seconds(1000, 1)
    assert seconds(1e-3, 0) > seconds(1e-3, 1)


def test_state_that_is_split_inside_hosts_travels_inside_and_gradients_once_between():
    several = SHARDED._replace(dp=16, global_batch=128, split_devices=4)
    network = 2e9
    cluster = dataclasses.replace(SLOW, link_gbs=1000, network_gbs=network / INSTANT.network_rate / 1e9)
    inside = timing.step(SHARDED, cluster, INSTANT).gradient_sums
    found = timing.step(several, cluster, INSTANT).gradient_sums
    # The four nodes sum the shards of their four ranks, which share the network.
    shard = 4 * inventory.weights(several) / 4
    assert found - inside == pytest.approx(2 * 3 / 4 * shard * 4 / network, rel=1e-4)
    assert found < 0.7 * timing.step(several._replace(split_devices=0), cluster, INSTANT).gradient_sums


def test_flash_attention_with_a_rate_of_its_own_skips_what_a_causal_mask_hides():
    work, flash = GPT._replace(core="flash"), dataclasses.replace(INSTANT, attention_rate=0.5)
    core = [product for product in inventory.parts(work).block.products if product.core]
    seconds = sum(timing.product_seconds(product, work, A100, flash) for product in core)
    scores = 4 * work.micro_batch * work.seq**2 * work.model.width  # operations of two products of whole matrices
    assert seconds == pytest.approx((1 + 2.5) / 2 * scores / (0.5 * A100.peak(2)))


def test_one_rank_negotiates_no_sums_and_others_once_or_for_each_micro_batch():
    waiting = dataclasses.replace(INSTANT, sum_ms=1e6)

    def rounds(**changes):
        return timing.step(OURS._replace(**changes), A100, waiting).gradient_sums // 1e3

    steps = round(OURS.micro_batches)
    assert steps > 1
    assert [rounds(dp=1), rounds(), rounds(zero_stage=1), rounds(zero_stage=2), rounds(zero_stage=3)] == [
        0, 1, 1, steps, steps,
    ]  # fmt: skip


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_ranks_of_a_cpu_wait_for_a_share_of_what_they_compute_for_each_other_rank(tp):
    work, shared = GPT._replace(tp=tp, micro_batch=2), dataclasses.replace(INSTANT, wait_share=0.25)
    alone, waiting = (timing.passes(inventory.parts(work).block, work, A100, each) for each in (INSTANT, shared))
    for one, other in zip(alone[:2], waiting[:2], strict=True):
        assert other.total - one.total == pytest.approx((tp - 1) * 0.25 * (one.products + one.kernels))


@pytest.mark.parametrize(
    ("implementation", "attention", "measured_ms"), [("reference", "softmax", 144.5), ("fused", "flash", 123)]
)
def test_a_step_of_bert_large_on_an_h200_is_planned_as_measured(implementation, attention, measured_ms):
    # docs/results/gpu; the bytes of plain ops are those of XLA's kernels, and no constant was chosen on these steps.
    given = dict.fromkeys(FUSED_OPS.values(), implementation) | {"attn_impl": attention}
    given |= {"optimizer": f"{implementation}_lamb", "precision": "bf16", "vocab_size": 30522, "max_seq_length": 512}
    shape = ["--flagfile=configs/large.flags", "--synthetic_data", "--micro_batch_size=32", "--grad_accum_steps=1"]
    shape += ["--max_steps=1", "--output_dir=unused"]
    config = run_config([*shape, *(f"--{name}={value}" for name, value in given.items())])
    plan = forecast.of_run(config, 1, CLUSTERS["h200"], of_trainer(gpu=True, card="h100"))
    assert 1000 * plan.seconds == pytest.approx(measured_ms, rel=0.1)


def test_xla_kernels_of_plain_ops_are_those_of_this_trainer_alone():
    plain = TFTRAIN._replace(fused=frozenset(), compiled=True, precision="bf16")
    ours, theirs = (inventory.block(work).kernels for work in (plain, EncoderJob(*plain)))
    assert {kernel.share for kernel in theirs} == {0}
    assert sum(kernel.share > 0 for kernel in ours) >= 4
