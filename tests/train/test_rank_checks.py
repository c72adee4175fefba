"""What ranks on GPUs are refused before anything else."""

import dataclasses
from types import SimpleNamespace

import pytest

from tests.kit.runs import configured
from tftrain.parallel import collectives, rank_consistency
from tftrain.parallel.launcher import Launch
from tftrain.parallel.mesh import Mesh, MeshError
from tftrain.train import rank_checks

INPUTS = SimpleNamespace(identity={})


@pytest.fixture
def gpus(monkeypatch):
    """Two ranks on GPUs; their Horovod has NCCL, or not."""
    monkeypatch.setattr(rank_consistency, "require_same", lambda *_, **__: None)
    monkeypatch.setattr(rank_checks.devices, "has_gpu", lambda: True)

    def with_nccl(version):
        monkeypatch.setattr("horovod.tensorflow.nccl_built", lambda: version)
        return Mesh(*Launch(0, 2, 0, 2))

    return with_nccl


def test_gpus_without_nccl_are_refused_unless_a_flag_allows_it(gpus):
    config, mesh = configured("--output_dir=unused"), gpus(0)
    with pytest.raises(
        MeshError, match=r"2 ranks on GPUs, but Horovod has no NCCL.*make setup GPU=1 NCCL=1.*--sums_without_nccl"
    ):
        rank_checks.before_start(config, INPUTS, mesh)
    compute = dataclasses.replace(config.compute, sums_without_nccl=True)
    rank_checks.before_start(dataclasses.replace(config, compute=compute), INPUTS, mesh)
    assert collectives.transport() == "through host memory: Horovod has no NCCL"


XLA = "--gradient_transport=xla"


@pytest.mark.parametrize(
    ("given", "sums", "compared"),
    [([], "horovod", ()), ([XLA], "xla", ("the kind of GPU", "XLA_FLAGS")), ([XLA, "--mode=evaluate"], "horovod", ())],
)
def test_programs_that_sum_over_ranks_must_be_equal(gpus, monkeypatch, given, sums, compared):
    seen = {}
    monkeypatch.setattr(rank_consistency, "require_same", lambda mesh, facts, *_: seen.update(facts["world"]))
    monkeypatch.setattr(rank_checks.devices, "device_name", lambda: "NVIDIA H200")
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1 --xla_dump_to=/of/this/rank --xla_b=2")
    config, mesh = configured("--output_dir=unused", *given), gpus(23203)
    rank_checks.before_start(config, INPUTS, mesh)
    expected = {"the kind of GPU": "NVIDIA H200", "XLA_FLAGS": "--xla_a=1 --xla_b=2"}
    assert {name: value for name, value in seen.items() if name in expected} == {
        name: expected[name] for name in compared
    }
    monkeypatch.setattr("horovod.tensorflow.nccl_built", lambda: 0)
    if sums == "xla":
        rank_checks.before_start(config, INPUTS, mesh)
    else:
        with pytest.raises(MeshError, match="Horovod has no NCCL"):
            rank_checks.before_start(config, INPUTS, mesh)


def test_the_log_names_the_nccl_that_horovod_was_built_with(gpus):
    rank_checks.before_start(configured("--output_dir=unused"), INPUTS, gpus(23203))
    assert collectives.transport() == "by NCCL 2.32.3"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [([], True), (["--tensor_float_32=false"], False), (["--deterministic"], False), (["--precision=bf16"], False)],
)
def test_products_are_in_tf32_as_the_flags_say(flags, expected):
    assert configured("--output_dir=unused", *flags).has_tf32 == expected
