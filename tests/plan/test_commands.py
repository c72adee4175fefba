"""Every answer of the planner is a command that the trainer takes and that plans to the same."""

import dataclasses
import random
import shlex

import pytest

from tests.kit.ranks import run_ranks
from tftrain.cli import flags
from tftrain.config.fields import ConfigError
from tftrain.config.train import TrainConfig
from tftrain.plan import levers
from tftrain.plan.cluster import CLUSTERS
from tftrain.plan.commands import command, of_division
from tftrain.plan.config import PlanConfig, search_space, workload
from tftrain.plan.forecast import forecast
from tftrain.plan.search import search
from tftrain.plan.system import systems

CONSTANTS = systems()["encoder"]


def drawn(rng):
    """Returns random flags of a job, and its cluster."""
    heads = rng.choice([2, 4, 6, 8, 12])
    family = rng.choice(["bert", "gpt", "llama", "modernbert"])
    given = {
        "model_family": family,
        "num_attention_heads": heads,
        "hidden_size": heads * rng.choice([20, 32, 64, 128]),
        "num_hidden_layers": rng.choice([2, 5, 12, 24]),
        "max_seq_length": rng.choice([100, 512]),
        "vocab_size": rng.choice([30522, 50001]),
        "precision": rng.choice(["fp32", "fp16", "bf16"]),
        "global_batch_size": rng.choice([24, 64, 1024]),
        "jit_compile": rng.choice(["auto", "true", "false"]),
        "pipeline_schedule": rng.choice(["1f1b", "gpipe", "interleaved", "zero_bubble"]),
    }
    more = {
        "num_key_value_heads": heads // 2,
        "grad_accum_dtype": "bf16",
        "seq_length_buckets": "64",
        "batch_rampup": "8:8:1000",
        "backward_segments": 2,
        "attn_impl": "flash",
        "split_opt_state": True,
        "hvd_fp16_compression": True,
        "sequence_parallel": True,
    }
    known = {field.name for section in vars(TrainConfig()).values() for field in dataclasses.fields(section)}
    given |= {name: value for name, value in more.items() if name in known and rng.random() < 0.15}
    return [f"--{name}={str(value).lower()}" for name, value in given.items()], rng.choice(
        [name for name, each in CLUSTERS.items() if each.multiprocessors]
    )


def accepts(config: PlanConfig):
    """Returns whether the trainer takes a division, as the search asks."""
    return lambda division: of_division(division, config) is not None


def answers(rng):
    """Yields the configurations of a search's first lines, or of the levers of what does not fit, and their plans."""
    given, name = drawn(rng)
    cluster = dataclasses.replace(CLUSTERS[name], per_node=rng.choice([1, 2, 4, 8]))
    config = flags.parse(PlanConfig, ["plan", *given, f"--nodes={rng.choice([1, 2])}"])
    try:
        space = search_space(config, cluster)
    except ConfigError:
        return
    found = search(space, CONSTANTS, 3, 0.06, accepts(config))
    yield from ((of_division(plan.work, config), plan) for plan in found.fastest)
    small = dataclasses.replace(cluster, memory_gb=rng.choice([2.0, 4.0, 8.0]))
    try:
        plan = forecast(workload(config, small), small, CONSTANTS, config.plan.memory_margin)
    except ConfigError:
        return
    if not plan.memory.fits(small):
        yield from ((each.config.train, each.plan) for each in levers.cheapest(config, plan))


@pytest.mark.parametrize("number", [30, pytest.param(200, marks=pytest.mark.nightly)])
def test_the_trainer_takes_every_answer(number):
    rng, taken, kinds = random.Random(0), 0, set()
    while taken < number:
        for config, plan in answers(rng):
            ranks = plan.work.ranks
            line = shlex.split(command(config, ranks))
            assert line[:5] == ["python", "-m", "tftrain.launch", "-np", str(ranks)]
            read = flags.parse(TrainConfig, ["tftrain.run", *line[5:]])
            assert read.problems(ranks) == [], line
            parsed = flags.parse(PlanConfig, ["plan", *line[5:], f"--nodes={ranks // plan.cluster.per_node}"])
            again = forecast(workload(parsed, plan.cluster), plan.cluster, plan.constants)
            assert (again.work, again.seconds, again.gb) == (plan.work, plan.seconds, plan.gb), line
            kinds.add((plan.work.model.causal, plan.work.zero_stage, plan.work.pp > 1, plan.work.core == "flash"))
            taken += 1
    assert len(kinds) > 8


@pytest.mark.parametrize("task", ["classification --labels=a,b", "embedding", "my_module:MyTask"])
def test_a_fine_tuning_has_commands_without_data_of_pre_training(task):
    given = ("--flagfile=configs/large.flags", *f"--task={task} --train_file=x.tsv --micro_batch_size=8".split())
    config = flags.parse(PlanConfig, ["plan", *given])
    read = flags.parse(TrainConfig, ["tftrain.run", *shlex.split(command(config.train, 8))[5:]])
    assert read.problems(8) == []


@pytest.mark.nightly
@pytest.mark.multirank
@pytest.mark.timeout(3600)
def test_answers_train(tmp_path):
    """Twenty searches over tiny models on this machine: the first line of each trains."""
    rng, constants = random.Random(1), systems()["tftrain_cpu"]
    cluster = dataclasses.replace(CLUSTERS["a64fx"], memory_gb=4.0, link_gbs=10.0)
    trained = 0
    while trained < 20:
        ranks, given = rng.choice([1, 2, 4]), drawn(rng)[0]
        sizes = ("--num_hidden_layers=4", "--num_attention_heads=4", "--hidden_size=32", "--vocab_size=101")
        small = (*sizes, "--global_batch_size=8", "--max_seq_length=32", "--max_steps=2", "--seq_length_buckets=none")
        config = flags.parse(PlanConfig, ["plan", *given, *small, "--batch_rampup=none", "--hidden_size=32"])
        machine = dataclasses.replace(cluster, per_node=ranks)
        try:
            space = search_space(config, machine)
        except ConfigError:
            continue
        found = search(space, constants, 1, 0.0, accepts(config))
        if not found.fastest:  # The flags fix what these ranks can't be.
            continue
        (plan,) = found.fastest
        line = shlex.split(command(of_division(plan.work, config), ranks))
        folder, trained = tmp_path / str(trained), trained + 1
        output = run_ranks(ranks, ["-m", "tftrain.run", *line[5:], f"--output_dir={folder}"], seconds=600)
        assert "step 2" in output or "step        2/2" in output, line
