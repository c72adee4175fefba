"""Suggestions: whoever adds the printed flags to a command gets the plan that was promised, for the same batch."""

import re

import pytest

from tftrain.bench.published.software import Megatron
from tftrain.cli import flags
from tftrain.plan import levers
from tftrain.plan.__main__ import SOFTWARE, main
from tftrain.plan.cluster import CLUSTERS
from tftrain.plan.commands import of_division
from tftrain.plan.config import PlanConfig, search_space, workload
from tftrain.plan.forecast import forecast
from tftrain.plan.search import search
from tftrain.plan.system import systems
from tftrain.plan.workload import Workload

WIDE = ["--num_hidden_layers=48", "--hidden_size=3072", "--num_attention_heads=48", "--max_seq_length=512"]
BF16 = [*WIDE, "--precision=bf16", "--flagfile=configs/fused.flags"]
GPT = [*BF16, "--model_family=gpt", "--trainer=megatron", "--vocab_size=51200"]
REMEDY = re.compile(r"(--\S.*?) \((\S+) GB, (\S+) s a step\)")


def said(capsys, given):
    code = main(["plan", *given])
    return code, capsys.readouterr().out


def step_of(out):
    return float(re.search(r"^  step +(\S+)$", out, re.MULTILINE)[1])


def batch_of(out):
    return int(re.search(r"global_batch=(\d+)", out)[1])


@pytest.mark.parametrize(
    "given",
    [
        [*BF16, "--micro_batch_size=32", "--split_opt_state", "--state_split_strategy=greedy:8"],
        [*GPT, "--micro_batch_size=16", "--zero_stage=1", "--grad_accum_steps=4"],
        [*BF16, "--micro_batch_size=125", "--split_grad_accum"],
        [*BF16, "--micro_batch_size=31", "--grad_accum_steps=3", "--split_opt_state"],
        [*BF16, "--global_batch_size=1024", "--grad_accum_steps=2"],
        [*BF16, "--global_batch_size=1024", "--micro_batch_size=64", "--batch_rampup=512:512:100000"],
        [*BF16, "--micro_batch_size=32", "--data_parallel_size=8"],
        [*WIDE, "--micro_batch_size=32", "--optimizer=adamw", "--jit_compile=true"],
        [*WIDE, "--micro_batch_size=32", "--nodes=2", "--cluster=a100_40gb"],
        [*BF16, "--micro_batch_size=48", "--nodes=2", "--split_weights", "--cluster=a100_40gb"],
        [*GPT, "--micro_batch_size=9", "--pipeline_parallel_size=2"],
    ],
)
def test_printed_flags_plan_to_what_was_said_of_them(capsys, given):
    code, out = said(capsys, given)
    assert code == 1
    suggestions = REMEDY.findall(out.partition(" that make it fit are ")[2].splitlines()[0])
    assert suggestions
    seconds = []
    for added, gb, step in suggestions:
        code, again = said(capsys, [*given, *added.removeprefix(", ").split()])
        assert code == 0, added
        assert re.search(r"^Fits: (\S+) of", again, re.MULTILINE)[1] == gb
        assert f"{step_of(again):.3g}" == step
        assert batch_of(again) == batch_of(out), added
        seconds.append(step_of(again))
    assert seconds == sorted(seconds)


def parsed(*given):
    return flags.parse(PlanConfig, ["plan", *given])


def planned(config, cluster, software=Workload):
    work = workload(config, CLUSTERS[cluster], software)
    return forecast(work, CLUSTERS[cluster], systems()["encoder"], config.plan.memory_margin)


def test_two_levers_are_tried_where_one_is_not_enough():
    config = parsed(*WIDE, "--micro_batch_size=32")
    plan = planned(config, "a100_40gb")
    assert not any(lever.plan.fits for lever in levers.levers(config, plan))
    assert levers.cheapest(config, plan)


def test_two_levers_are_offered_before_a_slower_one_that_is_enough():
    config = parsed(*BF16, "--nodes=6", "--micro_batch_size=16", "--grad_accum_steps=4", "--pipeline_parallel_size=2")
    plan = planned(config, "a100_80gb")
    enough = [lever.plan for lever in levers.levers(config, plan) if lever.plan.fits]
    found = levers.cheapest(config, plan, most=100)
    assert enough
    assert found[0].plan.seconds < min(plan.seconds for plan in enough)
    # What is enough by itself stands by itself alone: with tensor parallel ranks it is, whatever else is pulled.
    assert {lever.flags for lever in found if "tensor_parallel_size=3" in lever.flags} == {
        "--tensor_parallel_size=3 --grad_accum_steps=12"
    }


def test_a_lever_that_a_run_would_refuse_is_not_offered():
    def offered(*given, software=Workload):
        config = parsed(*BF16, *given)
        found = levers.levers(config, planned(config, "a100_80gb", software))
        return {name for lever in found for name in lever.changes}

    assert {"tensor_parallel_size", "pipeline_parallel_size", "split_opt_state"} <= offered()
    assert "pipeline_parallel_size" not in offered("--split_grad_accum")
    assert "tensor_parallel_size" not in offered("--data_parallel_size=8")
    assert "split_opt_state" not in offered("--split_grad_accum")

    def of_megatron(*given):
        return offered("--model_family=gpt", "--trainer=megatron", *given, software=Megatron)

    divides = {"tensor_parallel_size", "pipeline_parallel_size"}
    assert {*divides, "zero_stage"} <= of_megatron("--zero_stage=1")
    assert not divides & of_megatron("--data_parallel_size=8")
    assert "pipeline_parallel_size" not in of_megatron("--zero_stage=2")


@pytest.mark.parametrize(
    ("given", "cluster", "cores"),
    [
        (["--attention_probs_dropout_prob=0"], "a100_80gb", {"flash", "cudnn"}),
        (["--attention_probs_dropout_prob=0", "--examples_per_row=2"], "a100_80gb", {"flash"}),
        (["--attention_probs_dropout_prob=0"], "a64fx", {"flash"}),
        (["--attn_impl=flash"], "a100_80gb", {"softmax"}),
        (["--num_attention_heads=512"], "a100_80gb", set()),
    ],
)
def test_every_attention_core_that_a_run_accepts_is_a_lever(given, cluster, cores):
    config = parsed(*BF16, *given)
    found = list(levers.levers(config, planned(config, cluster)))
    assert {lever.changes["attn_impl"] for lever in found if "attn_impl" in lever.changes} == cores


SEQUENCES = "--precision=bf16 --max_seq_length=2048"


@pytest.mark.parametrize(
    ("model", "cluster", "nodes", "layout"),
    [
        (f"llama_8b.flags {SEQUENCES}", "a100_80gb", 4, ["--micro_batch_size=4"]),
        (f"llama_8b.flags {SEQUENCES} --trainer=megatron", "h100", 2, ["--zero_stage=1"]),
        (f"llama_1b.flags {SEQUENCES}", "v100", 1, ["--split_opt_state"]),
        (
            "xxlarge_48.flags --max_seq_length=512",
            "a100_40gb",
            2,
            ["--micro_batch_size=16", "--tensor_parallel_size=2"],
        ),
        (f"llama_70b.flags {SEQUENCES}", "a100_80gb", 16, ["--pipeline_parallel_size=4", "--grad_accum_steps=16"]),
    ],
)
def test_no_layout_of_a_search_on_the_same_ranks_is_faster(model, cluster, nodes, layout):
    machine, constants = CLUSTERS[cluster], systems()["encoder"]
    given = [*f"--flagfile=configs/{model}".split(), "--global_batch_size=512", f"--nodes={nodes}"]
    config, searched = parsed(*given, *layout), parsed(*given)
    plan = planned(config, cluster, SOFTWARE[config.plan.trainer])
    assert not plan.memory.fits(machine)
    space = search_space(searched, machine, type(plan.work))
    space = space._replace(fixed={**space.fixed, "ranks": nodes * machine.per_node})

    def accepts(work):
        return not work.runs_here or of_division(work, searched)

    fastest = search(space, constants, 1, config.plan.memory_margin, accepts).fastest[0]
    assert levers.cheapest(config, plan, 1)[0].plan.seconds <= fastest.seconds
