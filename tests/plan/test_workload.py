"""What a run's configuration amounts to: the planner's rules are those of the trainer."""

import dataclasses
import math
from types import SimpleNamespace

import pytest

from tftrain.architecture import flops
from tftrain.architecture.describe import describe
from tftrain.cli import flags
from tftrain.config.compute import ComputeConfig
from tftrain.config.fields import changed
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model import FUSED_OPS, ModelConfig
from tftrain.config.optimizer import OptimizerConfig
from tftrain.config.parallel import BatchConfig, ParallelConfig
from tftrain.config.train import TrainConfig
from tftrain.observe import planned
from tftrain.parallel.mesh import Mesh
from tftrain.plan import forecast, memory, timing
from tftrain.plan import workload as workload_module
from tftrain.plan.cluster import A100
from tftrain.plan.reported_flops import reported
from tftrain.plan.system import Constants
from tftrain.plan.workload import from_config

BATCH = BatchConfig(micro_batch_size=4, grad_accum_steps=1, global_batch_size=8)


def workload(config, gpu=True, **options):
    return from_config(dataclasses.replace(config, batch=BATCH), 2, gpu=gpu, **options)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("jit_compile", ["auto", "true", "false"])
def test_xla_is_planned_where_the_trainer_compiles_and_grappler_where_it_does_not(jit_compile, tp):
    config = TrainConfig(
        parallel=ParallelConfig(tensor_parallel_size=tp),
        compute=ComputeConfig(jit_compile=jit_compile, memory_optimization="heuristics"),
    )
    for gpu in (True, False):
        work = workload(config, gpu)
        assert work.compiled == (config.compiles(gpu) and gpu)
        assert work.grappler == ("none" if config.compiles(gpu) else "heuristics")
    assert workload(config).compiled == (jit_compile != "false")


@pytest.mark.parametrize("op", FUSED_OPS)
def test_an_op_is_planned_as_fused_unless_a_flag_names_the_reference(op):
    for value, fused in (("auto", True), ("fused", True), ("reference", False)):
        model = ModelConfig(**{FUSED_OPS[op]: value})
        assert (op in workload(TrainConfig(model=model)).fused) == fused


@pytest.mark.parametrize(("has_fused", "plain"), [(False, "lamb"), (True, "reference_lamb")])
def test_a_plain_update_is_what_the_flag_that_forces_it_says(monkeypatch, has_fused, plain):
    rules = {"lamb": workload_module.UPDATE_RULES["lamb"]._replace(has_fused=has_fused)}
    monkeypatch.setattr(workload_module, "UPDATE_RULES", rules)
    for name in ("lamb", "fused_lamb", plain):
        work = workload(TrainConfig(optimizer=OptimizerConfig(optimizer=name)))
        assert ("optimizer" in work.fused) == (name != plain), name


@pytest.mark.parametrize(("tp", "owners"), [(1, 4), (2, 2), (4, 1)])
def test_the_ranks_that_split_a_state_are_those_of_a_host_if_the_flag_says_so(tp, owners):
    parallel = ParallelConfig(split_weights=True, split_group="host", prefetch_blocks=3, tensor_parallel_size=tp)
    config = dataclasses.replace(TrainConfig(parallel=parallel), batch=dataclasses.replace(BATCH, global_batch_size=32))
    work = from_config(config, 8, per_node=4)
    assert (work.owners, work.zero_stage, work.prefetch) == (owners, 3 if owners > 1 else 0, 3)
    # What a run plans of itself, and what is planned for its launch.
    run = SimpleNamespace(config=config, mesh=Mesh(0, 8, 0, 4, tp), task=SimpleNamespace(sequences=work.sequences))
    assert planned.workload_of(run, 32).owners == owners
    cluster = dataclasses.replace(A100, per_node=4)
    assert forecast.of_run(config, 8, cluster, Constants()).work.owners == owners
    everywhere = dataclasses.replace(config, parallel=dataclasses.replace(parallel, split_group="all"))
    assert from_config(everywhere, 8, per_node=4).owners == 8
    unsplit = dataclasses.replace(config, parallel=ParallelConfig())
    assert from_config(unsplit, 8, per_node=4).owners == 1


def test_levers_of_plain_tensorflow_leave_nothing_fused():
    assert workload(changed(TrainConfig(), workload_module.reference_levers())).fused == frozenset()


def test_muon_has_one_moment_for_the_kernels_of_blocks_and_time_for_its_iterations():
    muon, adamw = (workload(TrainConfig(optimizer=OptimizerConfig(optimizer=name))) for name in ("muon", "adamw"))
    variables = muon.model.variables()
    sizes = {each.name: math.prod(each.shape) for each in variables}
    kernels = sum(size for name, size in sizes.items() if name.startswith("layer_") and name.endswith("/kernel"))
    expected = 4 * (2 * sum(sizes.values()) - kernels)
    assert memory.estimate(muon, Constants()).moments == pytest.approx(expected)
    cluster = A100
    seconds = timing.orthogonal_seconds(muon, cluster, Constants())
    # BERT base: in each of 12 layers four square kernels, and two with four times as many rows or columns.
    side = 768
    flops = 12 * 5 * (4 * 6 * side**3 + 2 * (4 * 4 + 2) * side**3)
    assert seconds > flops / cluster.peak(2)
    assert timing.orthogonal_seconds(adamw, cluster, Constants()) == 0
    split = muon._replace(dp=4, zero_stage=1)
    assert timing.orthogonal_seconds(split, cluster, Constants()) == pytest.approx(seconds / 4)
    many = muon._replace(dp=1024, zero_stage=1)
    assert memory.estimate(many, Constants()).moments > 4 * muon.moments * 4 * side**2


def test_lion_has_one_moment():
    lion, lamb = (workload(TrainConfig(optimizer=OptimizerConfig(optimizer=name))) for name in ("lion", "lamb"))
    one, two = (memory.estimate(work, Constants()) for work in (lion, lamb))
    assert 2 * one.moments == two.moments
    copied, both = (
        memory.estimate(work._replace(checkpoint_copies=1), Constants()).checkpoint_copy for work in (lion, lamb)
    )
    assert copied / both == pytest.approx(8 / 12)


@pytest.mark.parametrize(
    "task",
    ["classification", "question_answering", "embedding", "embedding --model_family=gpt --embedding_dense=128"],
)
def test_a_fine_tuning_is_planned_with_the_head_of_its_task(task):
    given = (*f"--task={task}".split(), "--train_file=x", "--output_dir=x", "--micro_batch_size=8")
    run = flags.parse(TrainConfig, ["run", *given, *(["--labels=a"] if task == "classification" else [])]).resolve(1)
    work = from_config(run, 1)
    model = describe(dataclasses.replace(run.model, vocab_size=work.model.vocab))
    assert work.model.parameters == model.parameters
    # As the log counts: without the head.
    blocks = 3 * work.sequences * 8 * flops.forward(model, work.seq, 0).blocks
    assert reported(work, "exact") == pytest.approx(blocks, rel=1e-3)
    head = forecast.forecast(work, A100, Constants()).memory.tensors
    assert [name for name, _ in head if name.startswith("head")] == []
    numbers = work.global_batch * work.sequences * (128 if "dense" in task else 768)
    assert work.vector_bytes == 4 * numbers * ("embedding" in task)


def test_pairs_of_texts_are_planned_as_so_many_sequences():
    model = dataclasses.replace(TrainConfig().model, task="embedding")
    pairs = workload(dataclasses.replace(TrainConfig(), model=model))
    with_negatives = FineTuningConfig(negatives=3, embedding_loss="triplet")
    triplets = workload(dataclasses.replace(TrainConfig(), model=model, fine_tuning=with_negatives))
    assert (triplets.sequences, triplets.compares) == (5, False)
    assert pairs.compares
    pairs = pairs._replace(compares=False)
    texts = pairs._replace(micro_batch=2 * pairs.micro_batch, global_batch=2 * pairs.global_batch, sequences=1)
    assert (pairs.sequences, pairs.tokens, pairs.micro_batches) == (2, texts.tokens, texts.micro_batches)
    one, other = (forecast.forecast(work, A100, Constants()) for work in (pairs, texts))
    assert (one.memory, one.time) == (other.memory, other.time)
    assert one.samples_per_sec == other.samples_per_sec / 2
    assert one.tflops_per_device == other.tflops_per_device
