"""Checks that all ranks of a run agree: once before anything else, and once before the first step."""

import os

import numpy as np

from tftrain.config.fields import sections
from tftrain.config.train import TrainConfig
from tftrain.host import devices
from tftrain.host.environment import host_name, project, versions
from tftrain.inputs.inputs import Inputs
from tftrain.ops.library import unavailable_reason
from tftrain.parallel import collectives, graph_collectives, rank_consistency
from tftrain.parallel.mesh import Mesh, MeshError
from tftrain.tasks.task import Batch
from tftrain.train.device_batches import DeviceBatch
from tftrain.train.step import TrainStep


def before_start(config: TrainConfig, inputs: Inputs, mesh: Mesh) -> None:
    """Compares configuration, packages, device and data of all ranks; before any other collective.

    Raises:
        MeshError: they differ, or are on GPUs and Horovod has no NCCL; on every rank.
        DataError: the data can't be read.
    """
    if mesh.size == 1:
        return
    packages = {**versions(), "python": ".".join(versions()["python"].split(".")[:2])}
    facts = {
        **rank_consistency.settings(sections(config)),
        "tftrain": project(),
        **{f"package {name}": str(version) for name, version in packages.items()},
        "the device": "a GPU" if devices.has_gpu() else "a CPU",
        "compilation by XLA": str(config.compiles(devices.has_gpu())),
        "the library of fused ops": unavailable_reason(devices.has_gpu()) or "available",
        **inputs.identity,
    }
    if devices.has_gpu():
        facts["sums between GPUs"] = collectives.transport()
    trains_by_xla = config.run.mode == "train" and config.compute.gradient_transport == "xla"
    if trains_by_xla:  # Programs for another GPU, or by other flags of XLA, may sum in another order.
        flags = [each for each in os.environ.get("XLA_FLAGS", "").split() if "_dump_" not in each]
        facts |= {"the kind of GPU": devices.device_name(), "XLA_FLAGS": " ".join(flags)}
    rank_consistency.require_same(mesh, {"world": facts}, "start", host_name())
    needs_nccl = not (trains_by_xla or config.compute.sums_without_nccl)
    if devices.has_gpu() and not collectives.has_nccl() and needs_nccl:
        raise MeshError(
            f"{mesh.size} ranks on GPUs, but Horovod has no NCCL, and sums through host memory are many times as slow; "
            "install a CUDA toolkit and run `make setup GPU=1 NCCL=1`, or use --sums_without_nccl"
        )


def before_first_step(step: TrainStep, batch: Batch | DeviceBatch, requests: np.ndarray, mesh: Mesh, ops: str) -> None:
    """Traces the step, which was not called yet, and compares the collectives that each group is about to do.

    Args:
        requests: with the shape and dtype of all later calls; another shape would cause a second trace, unchecked.
        ops: those of the model, which `auto` chooses on each rank.

    Raises:
        MeshError: they differ in order, name, dtype or shape; on every rank, with the first that does.
    """
    if mesh.size == 1:
        return
    names = graph_collectives.collectives_of(step.traced(batch, requests))
    if mesh.pipeline.size == 2:
        # Sorted: two stages add their transfers to their graphs in different orders.
        names["pipeline"] = [*names.get("pipeline", []), *sorted(names.get("link", []))]
    facts = {
        kind: {f"collective {index} of the {kind} group": words for index, words in enumerate(names.get(kind, []))}
        for kind in mesh.groups
    }
    facts["world"] = {"the choice of ops": ops, **facts["world"]}
    rank_consistency.require_same(mesh, facts, "step", host_name(), most=1)
