"""`--layout=auto` chooses the fastest layout that fits, among all that the trainer takes with the given flags."""

import dataclasses
import itertools
import random
import shlex
import time

import pytest

from tests.plan.test_commands import drawn
from tftrain.cli import flags
from tftrain.config.fields import ConfigError, changed
from tftrain.config.train import TrainConfig
from tftrain.plan import choice, machine
from tftrain.plan.cluster import CLUSTERS, Cluster
from tftrain.plan.commands import FOR_SOME, freed
from tftrain.plan.config import PlanConfig, workload
from tftrain.plan.forecast import forecast
from tftrain.plan.system import systems
from tftrain.plan.workload import LAYOUT, SPLITS

MACHINE = Cluster("this_machine", 12.0, 0.1, 0.2, 20.0, 0, 1, 0, 2.0, curve=((64, 0.3), (512, 0.9), (2048, 1.0)))
CPU, GPU = systems()["tftrain_cpu"], systems()["encoder"]
MODEL = ("--num_hidden_layers=4", "--hidden_size=256", "--num_attention_heads=4", "--vocab_size=1000")
BATCH = "--global_batch_size=16"
EXAMPLES = ("--train_file=a.tsv", "--eval_file=b.tsv", "--tokenizer_dir=c")


def request(*args, ranks=4, cluster=MACHINE, constants=CPU, memory_gb=None):
    """Returns a request for a run on so many ranks of one host."""
    config, problems, given = flags.read(PlanConfig, ["launch", "--synthetic_data", *args])
    assert not problems
    cluster = machine.shared(cluster, ranks) if cluster is MACHINE else dataclasses.replace(cluster, per_node=ranks)
    if memory_gb is not None:
        cluster = dataclasses.replace(cluster, memory_gb=memory_gb)
    free = freed(config.train, given)
    return choice.Request(PlanConfig(**vars(free), plan=config.plan), given, cluster, constants)


def every_plan(asked):
    """Yields the plans of all layouts that the trainer takes, from flags, each of which is kept or tried."""
    config, given, cluster, constants, _ = asked
    sizes = [size for size in range(1, 65) if config.batch.global_batch_size % size == 0]
    tried = {
        "tensor_parallel_size": [1, 2, 4],
        "pipeline_parallel_size": [1, 2, 4],
        "schedule": [("1f1b", 1), ("zero_bubble", 1), ("interleaved", 2)],
        "split": [(), ("split_opt_state",), ("split_grad_accum",), ("split_weights",)],
        "micro_batch_size": sizes,
        "activation_checkpointing": ["none", "selective", "full"],
        "attn_impl": ["softmax", "flash"],
        "sequence_parallel": [False, True],
    }
    # What flags give is kept, whatever is tried.
    tried = {name: values[:1] if name in given else values for name, values in tried.items()}
    for values in itertools.product(*tried.values()):
        found = dict(zip(tried, values, strict=True))
        found["pipeline_schedule"], found["virtual_pipeline_size"] = found.pop("schedule")
        split = found.pop("split")
        found |= {name: name in split for name in SPLITS}
        if given & set(SPLITS) and split != tuple(name for name in SPLITS if getattr(config.parallel, name)):
            continue  # A ZeRO stage that flags give is kept, see docs/planner.md.
        kept = changed(config, {name: value for name, value in found.items() if name not in given})
        tp, pp = kept.parallel.tensor_parallel_size, kept.parallel.pipeline_parallel_size
        if tp * pp > cluster.per_node or (pp > 1 and kept.parallel.split_weights):
            continue
        if pp == 1 and kept.parallel.pipeline_schedule != "1f1b":
            continue
        try:
            yield forecast(workload(kept, cluster), cluster, constants, config.plan.memory_margin)
        except ConfigError:
            continue


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--precision=bf16", "--model_family=gpt"),
        pytest.param(("--tensor_parallel_size=2",), marks=pytest.mark.nightly),
        ("--tensor_parallel_size=1", "--pipeline_parallel_size=1", "--attn_impl=softmax"),
        ("--pipeline_parallel_size=2", "--activation_checkpointing=none", "--split_opt_state=false"),
        pytest.param(("--pipeline_parallel_size=4", "--pipeline_schedule=gpipe"), marks=pytest.mark.nightly),
        ("--micro_batch_size=2", "--sequence_parallel=false", "--pipeline_parallel_size=1"),
        pytest.param(("--grad_accum_steps=2", "--split_grad_accum"), marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("memory_gb", [pytest.param(12.0, marks=pytest.mark.nightly), 1.18])
def test_the_fastest_of_all_that_fit_and_keep_the_flags_is_chosen(args, memory_gb):
    asked = request(*MODEL, BATCH, *args, memory_gb=memory_gb)
    fitting = sorted(plan.seconds for plan in every_plan(asked) if plan.fits)
    assert fitting
    best = choice.choose(asked).fastest[0]
    assert best.seconds == pytest.approx(fitting[0], rel=1e-12)
    assert best.work.ranks == 4
    assert best.fits


@pytest.mark.parametrize("number", [20, pytest.param(60, marks=pytest.mark.nightly)])
def test_the_arguments_of_a_choice_are_its_plan_and_leave_out_what_is_given(number):
    rng, found = random.Random(3), 0
    while found < number:
        args, name = drawn(rng)
        ranks = rng.choice([1, 2, 4, 8])
        fixed = rng.sample(["--activation_checkpointing=none", "--attn_impl=softmax", "--tensor_parallel_size=1"], 1)
        args = [*args, *fixed] if not any(arg.startswith("--attn_impl") for arg in args) else args
        try:
            asked = request(*args, ranks=ranks, cluster=CLUSTERS[name], constants=GPU)
            chosen = choice.choose(asked)
        except ConfigError:
            continue
        for plan in chosen.fastest:
            line = choice.arguments(plan.work, asked)
            assert not {arg.partition("=")[0].removeprefix("--") for arg in line} & asked.given
            config = flags.parse(TrainConfig, ["run", "--synthetic_data", "--output_dir=out", *args, *line])
            assert config.problems(ranks) == []
            again = flags.parse(PlanConfig, ["plan", "--synthetic_data", *args, *line])
            assert workload(again, asked.cluster) == plan.work, line
            found += 1


def test_a_plain_start_names_every_flag_of_the_layout_for_a_checkpoint_may_have_others():
    asked = request(*MODEL, BATCH, ranks=1)
    line = choice.arguments(choice.choose(asked).fastest[0].work, asked)
    named = {arg.partition("=")[0].removeprefix("--") for arg in line}
    assert named == {*LAYOUT, *FOR_SOME} - {"grad_accum_steps"}


def test_the_lines_name_the_choice_two_runners_up_and_reasons():
    found = choice.choose(request(*MODEL, BATCH))
    head, first, *others = choice.lines(found)
    assert f"{found.fitting} of {found.candidates} layouts of 4 ranks fit into 3.00 GB each on this_machine" in head
    assert f"fastest of {found.fitting} layouts that fit" in first
    assert len(others) == 2
    assert all("% slower, mostly by " in line or line.endswith(": as fast") for line in others)


@pytest.mark.parametrize(("ranks", "name"), [(64, "a100_80gb"), (512, "h100")])
def test_a_large_model_on_many_ranks_is_searched_in_under_two_seconds(ranks, name):
    size = ["--num_hidden_layers=48", "--hidden_size=8192", "--num_attention_heads=64", "--vocab_size=50304"]
    size += ["--max_position_embeddings=1024"]
    args = (*size, "--model_family=gpt", "--max_seq_length=1024", "--precision=bf16", "--global_batch_size=4096")
    asked = request(*args, ranks=8, cluster=CLUSTERS[name], constants=GPU)
    config = dataclasses.replace(asked.config, plan=dataclasses.replace(asked.config.plan, nodes=ranks // 8))
    begin = time.process_time()
    found = choice.choose(asked._replace(config=config))
    assert time.process_time() - begin < 2
    assert {plan.work.ranks for plan in found.fastest} == {ranks}


def test_a_limit_that_nothing_fits_names_what_would_fit():
    asked = request(*MODEL, BATCH, memory_gb=0.9)
    with pytest.raises(ConfigError) as error:
        choice.choose(asked)
    (problem,) = error.value.problems
    assert "fits 4 ranks with 0.90 GB each, 6% of it free" in str(problem)
    assert "more ranks, more memory or a smaller model" in str(problem)
    needed = float(str(problem).split(" GB: ")[0].rpartition(" ")[2])
    assert choice.choose(request(*MODEL, BATCH, memory_gb=(needed + 0.01) / 0.94)).fitting > 0
    # A limit that one more lever reaches.
    big = ("--num_hidden_layers=2", "--hidden_size=1024", "--num_attention_heads=16", "--vocab_size=30522", BATCH)
    big += ("--optimizer=reference_lamb", "--ln_impl=reference")
    tight = request(*big, ranks=1, memory_gb=2.4)
    with pytest.raises(ConfigError) as error:
        choice.choose(tight)
    added = str(error.value).split(": add ")[1].split(", or take")[0]
    assert choice.choose(request(*big, *shlex.split(added), ranks=1, memory_gb=2.4)).fitting > 0


@pytest.mark.parametrize(
    ("args", "ranks", "line"),
    [
        ([BATCH, "--pipeline_parallel_size=3"], 4, "--pipeline_parallel_size=3: expected a divisor of 4"),
        (["--global_batch_size=7"], 3, "--global_batch_size=7: expected a multiple of"),
        (
            [BATCH, "--split_grad_accum", "--pipeline_parallel_size=2"],
            4,
            "--split_grad_accum=true: expected --split_opt",
        ),
        ([BATCH, "--micro_batch_size=5"], 4, "--global_batch_size=16: expected a multiple of --micro_batch_size=5"),
        ([BATCH, "--split_opt_state"], 1, "--layout=auto: no layout of 1 ranks has the flags that are given"),
    ],
)
def test_flags_that_no_layout_has_are_refused_with_the_reason(args, ranks, line):
    with pytest.raises(ConfigError) as error:
        choice.choose(request(*MODEL, *args, ranks=ranks))
    assert str(error.value).startswith(line)
    assert len(error.value.problems) == 1


def test_the_micro_batch_of_compared_samples_is_chosen_like_any_other():
    found = choice.choose(request(*MODEL, BATCH, "--synthetic_data=false", "--task=embedding", *EXAMPLES, ranks=2))
    assert found.fastest[0].work.compares


def test_flags_of_a_checkpoint_are_free_and_given_ones_are_not():
    config = flags.parse(TrainConfig, ["run", "--tensor_parallel_size=2", "--micro_batch_size=4", "--fit_micro_batch"])
    free = freed(config, frozenset({"micro_batch_size"}))
    assert (free.parallel.tensor_parallel_size, free.batch.micro_batch_size) == (1, 4)
    assert not free.batch.fit_micro_batch


@pytest.mark.parametrize(
    "saved",
    [
        ["--split_opt_state", "--state_split_strategy=greedy:2"],
        ["--split_weights", "--prefetch_blocks=2"],
        ["--pipeline_parallel_size=2", "--pipeline_split=3,1"],
        ["--tensor_parallel_size=2", "--group_transport=tensorflow"],
    ],
)
def test_what_only_the_layout_of_a_checkpoint_has_narrows_no_search(saved):
    asked, plain = request(*MODEL, BATCH, *saved, ranks=1), request(*MODEL, BATCH, ranks=1)
    asked = asked._replace(config=freed(asked.config, frozenset()), given=plain.given)
    found = choice.choose(asked)
    assert found == choice.choose(plain)
    line = choice.arguments(found.fastest[0].work, asked)
    config = flags.parse(TrainConfig, ["run", "--output_dir=x", "--synthetic_data", *MODEL, *saved, *line])
    assert config.problems(1) == []


def test_the_batches_of_all_phases_divide_among_the_ranks():
    asked = request(*MODEL, BATCH)
    assert choice.choose(asked).fastest[0].work.dp == 4
    whole = changed(asked.config, {"phases": "until_samples=60 global_batch_size=6; masked_lm_prob=0.1"})
    assert {plan.work.dp for plan in choice.choose(asked._replace(whole=whole)).fastest} <= {1, 2}


def test_of_layouts_with_equal_seconds_the_one_with_less_memory_comes_first():
    asked = request(*MODEL, BATCH, "--micro_batch_size=4", "--tensor_parallel_size=1", "--pipeline_parallel_size=1")
    plans = choice.choose(asked, 1 << 30).fastest
    pairs = [(first, then) for first, then in itertools.pairwise(plans) if first.seconds == then.seconds]
    assert (2, 1) in {(first.work.zero_stage, then.work.zero_stage) for first, then in pairs}
    assert all(first.gb <= then.gb for first, then in pairs)
