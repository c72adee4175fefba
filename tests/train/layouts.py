"""What each rank does in `test_layouts`: the same training in many layouts, against one rank alone.

    horovodrun -np 4 --gloo python -m tests.train.layouts [CASE ...]     # without names, all that so many ranks can
    horovodrun -np 4 --gloo python -m tests.train.layouts NOISY CASE...  # see `check_replicas`

The one-rank run is made in the same process, from the same seed and global batches, dropout on.
"""

import collections
import dataclasses
import functools
import itertools
import os
import random
import sys
import time
import zlib

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from tests.checkpoint import states
from tests.train.test_step import BASE, SEQ, VOCAB, batches
from tftrain.architecture.describe import describe
from tftrain.config.parallel import BatchConfig, ParallelConfig
from tftrain.data.causal_source import documents
from tftrain.families import FAMILIES
from tftrain.model.implementations import FLAGS
from tftrain.parallel import collectives
from tftrain.parallel import start as starting
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.mesh import Mesh
from tftrain.parallel.start import start
from tftrain.state.new_run import new_run
from tftrain.train.gradients import Accumulation
from tftrain.train.step import TrainStep

RANKS, STEPS, SAMPLES, ACCUMULATE = 4, 12, 16, 4
TRANSPORT = "GROUP_TRANSPORT"  # an environment variable; tensorflow only for cases with one mesh
END = 7  # the end token of a decoder's documents
LAMB, NOISY = "reference_lamb", "noisy"
FUSED = dict.fromkeys(FLAGS, "fused")
# The key biases' gradients are nothing but roundings, which Adam turns into steps of full length. The vocabulary of 67
# divides by nothing.
MODEL = dataclasses.replace(BASE.model, use_bias_in_keys=False, num_hidden_layers=1, num_attention_heads=4)
WIDE = {"hidden_size": 2560, "num_hidden_layers": 1, "intermediate_size": 64}
# Many gradients of so small a model are next to nothing if it has several layers, or pre-norm blocks. A large
# epsilon keeps Adam from turning their roundings into steps of full length.
GPT, LARGE_EPSILON = {"model_family": "gpt"}, 0.1
# With wide heads that share keys and values, with norms of both, and an output layer of its own.
LLAMA = {"model_family": "llama", **FAMILIES["llama"].defaults, "num_key_value_heads": 2, "use_bias_in_keys": True}
LLAMA |= {"attention_head_size": 10, "query_key_norm": True}
LLAMA |= {name: getattr(MODEL, name) for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")}
# Its last block is global, so that some windows are there only with several layers.
MODERN = {"model_family": "modernbert", **FAMILIES["modernbert"].defaults, "local_attention": 6, "global_attn_every": 2}
MODERN |= {name: getattr(MODEL, name) for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")}
MODERN |= {"use_bias_in_keys": True}
ROBERTA = {"model_family": "roberta", **FAMILIES["roberta"].defaults}
DISTILBERT = {"model_family": "distilbert", "gelu_form": "erf", "next_sentence": False}
FLASH = {"attn_impl": "flash", "hidden_size": 32}
# At 0.01 the losses of so wide a model jump up and down, and with them grow the roundings of sums in another order.
SLOWLY = 0.001
ZERO_1, ZERO_2 = {"split_opt_state": True}, {"split_opt_state": True, "split_grad_accum": True}
ZERO_3 = {**ZERO_2, "split_weights": True}
RECIPE = {"param_groups": "*/kernel rate=0.5 weight_decay=0.1; embeddings/* rate=2", "ema_decay": 0.9}


def case(
    accumulate=1,
    optimizer="reference_lamb",
    model=(),
    compute=(),
    grad_accum_dtype="fp32",
    learning_rate=0.01,
    packed=False,
    recipe=(),
    **parallel,
):
    """Returns a configuration, of which `parallel` is all that the one-rank run does without.

    If it is `packed`, every row has two examples, see `two_in_a_row`.
    """
    packed_data = dataclasses.replace(BASE.data, synthetic_data=False, data_dir="packed")
    model = dataclasses.replace(MODEL, **dict(model))
    is_flat = describe(model).block.pre_norm or model.num_hidden_layers > 1
    epsilon = LARGE_EPSILON if is_flat else BASE.optimizer.adam_epsilon
    return dataclasses.replace(
        BASE,
        data=packed_data if packed else BASE.data,
        model=model,
        batch=BatchConfig(None, accumulate, SAMPLES, grad_accum_dtype=grad_accum_dtype),
        optimizer=dataclasses.replace(
            BASE.optimizer,
            **{"optimizer": optimizer, "learning_rate": learning_rate, "adam_epsilon": epsilon, **dict(recipe)},
        ),
        compute=dataclasses.replace(BASE.compute, **dict(compute)),
        parallel=ParallelConfig(**parallel),
    )


# What a layout and its levers may be. Those of a factor that come first are the default and are not named.
FACTORS = {
    "ranks": {
        "dp4": {},
        "tp2": {"tensor_parallel_size": 2},
        "pp2": {"pipeline_parallel_size": 2},
        "pp4": {"pipeline_parallel_size": 4},
        "tp2-pp2": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    },
    "sequence": {"": {}, "sequence": {"sequence_parallel": True}},
    "schedule": {
        "1f1b": {},
        "gpipe": {"pipeline_schedule": "gpipe"},
        "interleaved": {"pipeline_schedule": "interleaved", "virtual_pipeline_size": 2},
        "zero_bubble": {"pipeline_schedule": "zero_bubble"},
    },
    "state": {
        "zero0": {},
        "zero1-even": ZERO_1,
        "zero1-naive": {**ZERO_1, "state_split_strategy": "naive"},
        "zero2-greedy:1": {**ZERO_2, "state_split_strategy": "greedy:1"},
        "zero3": ZERO_3,
    },
    "batch": {"": {}, "accumulate": {"accumulate": ACCUMULATE}},
    "model": {
        "bert": {},
        "geglu-pre_norm": {"model": {"activation": "geglu", "norm_position": "pre"}},
        "packed": {"packed": True},
        "gpt-rotary-geglu": {"model": {**GPT, "position_embedding": "rotary", "activation": "geglu"}},
        "gpt-documents": {"model": GPT, "packed": True},
        "gpt-alibi": {"model": {**GPT, "position_embedding": "alibi"}},
        "llama": {"model": LLAMA},
        "roberta": {"model": ROBERTA | FLASH},
        "roberta-packed": {"model": ROBERTA, "packed": True},
        "distilbert": {"model": DISTILBERT},
        "distilbert-packed": {"model": DISTILBERT | FLASH, "packed": True},
        "modernbert": {"model": MODERN},
        "modernbert-packed": {"model": MODERN | FLASH, "packed": True},
    },
    "ops": {"": {}, "fused": {"model": FUSED}},
    "rule": {"lamb": {}, "adamw": {"rule": "adamw"}},
    "format": {
        "fp32": {},
        "bf16": {"compute": {"precision": "bf16"}, "model": {"ln_dtype": "fp32"}},
        "fp16": {"compute": {"precision": "fp16"}},
    },
    "compiler": {"": {}, "xla": {"compute": {"jit_compile": "true"}}},
    "checkpointing": {
        "": {},
        "selective": {"compute": {"activation_checkpointing": "selective"}},
        "full": {"compute": {"activation_checkpointing": "full"}},
    },
    "sums": {
        "": {},
        "sparse": {"compute": {"sparse_as_dense": False}},
        "fp16-wire": {"compute": {"hvd_fp16_compression": True}},
        "fp16-buffers": {"grad_accum_dtype": "fp16"},
    },
    "backward": {"": {}, "segments": {"backward_segments": 2}},
}


NARROW = {("format", "bf16"), ("format", "fp16"), ("sums", "fp16-wire"), ("sums", "fp16-buffers")}


def configured(row):
    """Returns the configuration of a row, which has a value of each factor."""
    flags = {}
    for factor, value in row.items():
        for name, given in FACTORS[factor][value].items():
            flags[name] = {**flags.get(name, {}), **given} if isinstance(given, dict) else given
    stages = flags.get("pipeline_parallel_size", 1)
    segments = flags.get("backward_segments", 1)
    layers = (
        segments if stages == 1 else stages * flags.get("virtual_pipeline_size", 1) + 1
    )  # they do not divide evenly
    flags["model"] = {"num_hidden_layers": layers, **flags.get("model", {})}
    plain = dataclasses.replace(MODEL, **flags["model"]).without_fused_op
    flags["model"] |= dict.fromkeys(plain, "reference")
    rule, fused = flags.pop("rule", "lamb"), row["ops"] == "fused"
    return case(optimizer=f"{'fused' if fused else 'reference'}_{rule}", **flags)


def has_effect(row):
    """Whether each value of a row changes what is done, and the trainer takes them together."""
    stages, alone = "pp" in row["ranks"], row["ranks"] in ("pp4", "tp2-pp2")
    return (
        (stages or row["schedule"] == "1f1b")
        and (row["ranks"] == "dp4" or not row["backward"])
        and not (stages and (not row["batch"] or row["state"].startswith("zero2")))
        and not (alone and (row["state"] != "zero0" or row["sums"] == "fp16-wire"))
        and not (row["sums"] == "sparse" and (stages or row["state"] != "zero0"))
        and not (row["sums"] == "fp16-buffers" and (not row["batch"] or row["format"] != "fp32"))
        and not configured(row).problems(RANKS)
    )


def pairs_of(row):
    """Returns the pairs of values that a row tests: with the loose tolerance of 16 bits, only those of the 16 bits."""
    narrow = {item for item in row.items() if item in NARROW}
    return {pair for pair in itertools.combinations(row.items(), 2) if not narrow or not narrow.isdisjoint(pair)}


def pairwise(factors, allowed, tries=80000, seed=0):
    """Returns rows that test every two values of two factors that can occur together, after random tries.

    Most faults need one or two values to show (Kuhn, Wallace and Gallo, "Software fault interactions and implications
    for software testing", 2004).
    """
    rng = random.Random(seed)
    tried = [{name: rng.choice(list(values)) for name, values in factors.items()} for _ in range(tries)]
    rows = [(row, pairs_of(row)) for row in tried if allowed(row)]
    missing, chosen = set().union(*(pairs for _, pairs in rows)), []
    while missing:
        row, pairs = max(rows, key=lambda found: len(found[1] & missing))
        chosen.append(row)
        missing -= pairs
    return chosen


@functools.cache
def design():
    """Returns the rows of which each pair of values is in one."""
    return pairwise(FACTORS, has_effect)


def name_of(row):
    """Returns the values of a row that are not the defaults, after the ranks."""
    others = [value for factor, value in row.items() if factor != "ranks" and value != next(iter(FACTORS[factor]))]
    return "+".join([row["ranks"], *others])


def row_of(name):
    """Returns the row of a name; no two factors have a value in common."""
    given = name.split("+")
    return {
        factor: next((each for each in given if each in values), next(iter(values)))
        for factor, values in FACTORS.items()
    }


EIGHT = ("pp8", "tp2-pp4-gpt", "dp2-tp2-pp2-zero1-gpt", "tp2-zero3-host")


@functools.cache
def others():
    """Returns the cases by name that are no rows of the design: what only other sizes and rules show."""
    wide = {"model": {**WIDE, "activation": "geglu"}, "learning_rate": SLOWLY}
    staged, two = {"accumulate": 8, "optimizer": LAMB}, {"num_hidden_layers": 2}
    return {
        "tp2-zero1-wide": case(**ZERO_1, tensor_parallel_size=2, **wide),  # a tensor is larger than a bucket
        "tp4-sequence": case(tensor_parallel_size=4, sequence_parallel=True),
        "zero1-lion": case(**ZERO_1, optimizer="lion", learning_rate=SLOWLY),
        "zero2-recipe": case(**ZERO_2, recipe=RECIPE),
        "tp2-recipe-stableadamw": case(tensor_parallel_size=2, optimizer="stableadamw", recipe=RECIPE),
        "zero1-tp2-stableadamw": case(**ZERO_1, tensor_parallel_size=2, optimizer="stableadamw"),
        "zero3-stableadamw": case(**ZERO_3, model=two, optimizer="stableadamw"),
        "pp2-recipe": case(ACCUMULATE, model=two, recipe=RECIPE, pipeline_parallel_size=2),
        "zero1-tp2-muon": case(**ZERO_1, tensor_parallel_size=2, optimizer="muon", recipe=RECIPE),
        "zero2-muon": case(**ZERO_2, optimizer="muon"),
        "zero3-muon": case(**ZERO_3, model=two, optimizer="muon"),
        "zero1-pp2-muon-llama": case(
            ACCUMULATE, **ZERO_1, model=LLAMA | {"num_hidden_layers": 2}, optimizer="muon", pipeline_parallel_size=2
        ),
        "zero3-host": case(2, **ZERO_3, model=two, split_group="host"),
        "tp2-zero3-host": case(**ZERO_3, model=two, split_group="host", tensor_parallel_size=2),
        "zero3-greedy": case(**ZERO_3, model=two, state_split_strategy="greedy:2", prefetch_blocks=0),
        "zero3-naive": case(**ZERO_3, model=two, state_split_strategy="naive", prefetch_blocks=2),
        "zero1-greedy:3": case(**ZERO_1, state_split_strategy="greedy:3"),
        "pp2-list": case(ACCUMULATE, model={"num_hidden_layers": 5}, pipeline_parallel_size=2, pipeline_split="1,4"),
        "pp8": case(**staged, model={"num_hidden_layers": 9}, pipeline_parallel_size=8),
        "tp2-pp4-gpt": case(
            **staged, model={"num_hidden_layers": 5, **GPT}, tensor_parallel_size=2, pipeline_parallel_size=4
        ),
        "dp2-tp2-pp2-zero1-gpt": case(
            **staged, **ZERO_1, model={"num_hidden_layers": 3, **GPT}, tensor_parallel_size=2, pipeline_parallel_size=2
        ),
    }


def named(name):
    """Returns the case of a name; a rank need not make the design for a row."""
    return others()[name] if name in others() else configured(row_of(name))


def names_of_cases():
    """Returns the names of all cases: every pair of values on four ranks, and the others."""
    return [*map(name_of, design()), *others()]


@functools.cache
def transports():
    """Returns the transport of the groups of each case, by name: each value of the design is in rows of both."""
    values = {name: [name] if name in others() else row_of(name).items() for name in names_of_cases()}
    grouped = [name for name in values if sizes(named(name)) != (1, 1)]
    counts = collections.Counter(value for name in grouped for value in values[name])
    chosen, balance = dict.fromkeys(values, "horovod"), collections.Counter()
    for name in grouped:
        if sum(balance[value] / counts[value] ** 2 for value in values[name]) > 0:
            chosen[name] = "tensorflow"
        balance.update(dict.fromkeys(values[name], 1 if chosen[name] == "horovod" else -1))
    return chosen


# With 16-bit weights, a gradient is a sum over many roundings of either sign: a few of them are left.
TOLERANCES = {"fp32": (1e-5, 1e-4), "bf16": (8 * 2**-8, 4 * 2**-8), "fp16": (8 * 2**-11, 4 * 2**-11)}


def coarsest(config):
    """Returns the format with the largest roundings that gradients pass through."""
    in_fp16 = config.compute.hvd_fp16_compression or config.batch.grad_accum_dtype == "fp16"
    return "fp16" if in_fp16 and config.compute.precision == "fp32" else config.compute.precision


def train(config, mesh):
    """Returns what every update reported, and the whole state before and after the first one."""
    run = new_run(config.resolve(mesh.size), mesh)
    assert run.shards_weights == config.parallel.split_weights
    step = TrainStep(run)
    begin, end = mesh.data.share(SAMPLES)
    infos, states = [], [snapshot(run)]
    draw = token_batches if config.model.is_causal else batches
    for number, batch in enumerate(draw(STEPS, samples=SAMPLES)):
        if config.data.data_dir:
            is_decoder = config.model.is_causal
            batch = batch | documents(batch["input_ids"], END) if is_decoder else two_in_a_row(batch)
        info = step({name: tensor[begin:end] for name, tensor in batch.items()})
        infos.append((*np.asarray(info.sums), float(info.grad_norm)))
        if number == 0:
            states.append(snapshot(run))
    return np.array(infos), states


def two_in_a_row(batch):
    """Returns a batch whose rows are two examples: what was one is cut in the middle. There might be three."""
    samples, half = batch["input_ids"].shape[0], SEQ // 2
    positions, second = np.arange(SEQ) % half, np.arange(SEQ) >= half
    labels = batch["next_sentence_labels"]
    labels = tf.stack([labels, tf.roll(labels, 1, 0), tf.zeros_like(labels)], 1)
    rows = {
        "sequence_ids": batch["input_mask"] * (1 + second),
        "position_ids": batch["input_mask"] * positions,
        "sequence_starts": tf.tile([[0, half, 0]], [samples, 1]),
        "next_sentence_labels": labels,
    }
    both = tf.cast(batch["input_mask"][:, half], tf.float32)
    return {
        **{name: value for name, value in batch.items() if name != "example_weights"},
        **{name: tf.cast(value, tf.int32) for name, value in rows.items()},
        "sequence_weights": tf.stack([tf.ones([samples]), both, tf.zeros([samples])], 1),
    }


def token_batches(count, samples):
    """Random batches of a decoder."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        tokens = rng.integers(1, VOCAB, (samples, SEQ + 1))
        yield {"input_ids": tf.constant(tokens[:, :-1], tf.int32), "labels": tf.constant(tokens[:, 1:], tf.int32)}


def snapshot(run):
    """Returns a copy of the whole state on the chief; every rank takes part."""
    return {name: np.array(value, np.float64) for name, value in states.collected(run).items()}


@functools.cache
def alone(config):
    """Trains on this rank alone, without dividing anything."""
    return train(dataclasses.replace(config, parallel=ParallelConfig()), Mesh())


def compare(name, config, mesh):
    """Trains in a layout and, on the chief, compares with one rank alone."""
    infos, states = train(config, mesh)
    if not mesh.is_chief:
        return
    expected, expected_states = alone(dataclasses.replace(config, parallel=ParallelConfig()))
    at_once, later = TOLERANCES[coarsest(config)]
    # Sums of losses; numbers of predicted words and of samples, which nothing rounds; last comes the gradient norm.
    losses, counts = ([0, 3, -1], [1, 5]) if describe(config.model).head("pooler") else ([0, -1], [1, 3])
    np.testing.assert_array_equal(infos[:, counts], expected[:, counts], err_msg=name)
    np.testing.assert_allclose(infos[0, losses], expected[0, losses], rtol=at_once, err_msg=name)
    np.testing.assert_allclose(infos[:, losses[:-1]], expected[:, losses[:-1]], rtol=later, err_msg=name)
    (before, after), (expected_before, expected_after) = states, expected_states
    for tensor, value in expected_after.items():
        np.testing.assert_array_equal(before[tensor], expected_before[tensor], err_msg=f"{name}: {tensor}")
        if coarsest(config) != "fp32" and not tensor.startswith("adam_m"):
            continue  # Where a gradient is next to nothing, its roundings decide the direction of the first update.
        # Moments after one update are the gradients and their squares.
        change, expected_change = after[tensor] - before[tensor], value - expected_before[tensor]
        error = np.linalg.norm(change - expected_change)
        # Both weights that were updated are rounded to fp32, which may show where the update is small beside them.
        allowed = at_once * np.linalg.norm(expected_change) + 2 * 2**-24 * np.linalg.norm(value)
        assert error <= allowed, f"{name}: {tensor}: {error}, expected at most {allowed}"


def sizes(config):
    """Returns the tensor parallel and the pipeline parallel size."""
    return config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size


def mesh_of(config):
    """Returns what ranks that connect once have in common."""
    return *sizes(config), config.parallel.split_group


def connected(parallel):
    """Returns how the ranks of a case connect, with the transport that the environment names.

    No state is divided there: Horovod 0.28 crashes at its second start in a process that sets its fusion threshold.
    """
    return ParallelConfig(
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        split_group=parallel.split_group,
        group_transport=os.environ.get(TRANSPORT, "horovod"),
    )


def digests(run):
    """Returns a checksum of the bits of everything that tensor parallel ranks hold whole."""
    state, shards = run.optimizer.state, run.task.model.shards
    held = {name: value for name, value in run.task.model.named_variables().items() if not shards[name].is_divided}
    for kind, stores in {"master": state.masters, **state.slots}.items():
        held |= {f"{kind} {n}": stores[n] for n, is_whole in enumerate(state.replicated) if is_whole}
    return {name: zlib.crc32(np.asarray(value).tobytes()) for name, value in held.items()}


def check_replicas(name, config, mesh):
    """Trains tensor parallel ranks whose replicated gradients differ; weights and moments must stay equal to the bit.

    On a GPU a gradient such as that of a bias changes in its last bits from call to call. Here every rank multiplies
    the gradients of the variables that tensor parallel ranks hold whole by a number of its own.
    """
    run, micro_batch = new_run(config.resolve(mesh.size), mesh), Accumulation._micro_batch
    names, shards, noise = run.task.model.named_variables(), run.task.model.shards, 1 + 2**-9 * (1 + mesh.rank)

    def noisy(self, *args):
        found = micro_batch(self, *args)
        pairs = zip(names, found.dense, strict=True)
        return found._replace(dense=[g if shards[name].is_divided else g * noise for name, g in pairs])

    Accumulation._micro_batch = noisy
    step, (begin, end), before = TrainStep(run), mesh.data.share(SAMPLES), digests(run)
    for batch in batches(3, samples=SAMPLES):
        info = step({key: tensor[begin:end] for key, tensor in batch.items()})
        decisions = np.array([info.grad_norm, info.learning_rate, info.skipped], np.float32)
        every = collectives.gather_numbers(mesh.world, zlib.crc32(decisions.tobytes()), "decisions")
        assert len(set(every)) == 1, f"{name}: the ranks decide differently"
    Accumulation._micro_batch, after = micro_batch, digests(run)
    assert sum(before[what] != after[what] for what in after) > len(after) // 2, "nothing was trained"
    for what, value in after.items():  # Only weights are equal on data parallel ranks too, as state may be divided.
        group = mesh.world if what in shards else mesh.tensor
        assert len(set(collectives.gather_numbers(group, value, "digest"))) == 1, f"{name}: {what} differs"


def main(names):
    """Runs the named cases, by default all that so many ranks can, by the sizes of their tensor parallel groups."""
    mesh, launch, check = None, launch_from_environment(), compare
    if names[:1] == [NOISY]:
        check, names = check_replicas, names[1:]
    starting.value_of_rank_0 = lambda launch, name, value: value  # The launcher's store remembers the first start.
    found = {name: named(name) for name in names or names_of_cases()}
    names = names or [name for name in found if not found[name].parallel.problems(launch.size, {})]
    before = None
    for name in sorted(names, key=lambda name: mesh_of(found[name])):
        if before != mesh_of(found[name]):
            if mesh is not None:
                hvd.shutdown()
            before, local = mesh_of(found[name]), launch
            if before[-1] == "host":  # There are two.
                of_host = launch.size // 2
                local = launch._replace(local_rank=launch.rank % of_host, local_size=of_host)
            mesh = start(local, 1, connected(found[name].parallel))
        begin = time.perf_counter()
        check(name, found[name], mesh)
        if mesh.is_chief:
            print(f"{name} agrees, {time.perf_counter() - begin:.1f} s", flush=True)
        collectives.gather_numbers(mesh.world, 0.0, "end")  # Horovod ends on all ranks when one is done.


if __name__ == "__main__":
    main(sys.argv[1:])
