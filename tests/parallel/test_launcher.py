"""A process's place is read from the environment of each launcher."""

import pytest

from tftrain.parallel.launcher import Launch, launch_from_environment, unknown_launcher

HOROVOD = "HOROVOD_RANK=3 HOROVOD_SIZE=8 HOROVOD_LOCAL_RANK=1"


def variables(text):
    """Returns the variables of NAME=VALUE words."""
    return dict(word.split("=") for word in text.split())


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ("", Launch(0, 1, 0, 1)),
        (f"{HOROVOD} HOROVOD_LOCAL_SIZE=2", Launch(3, 8, 1, 2)),
        *(
            (f"{name}_RANK=5 {name}_SIZE=8 {name}_LOCAL_RANK=1 {name}_LOCAL_SIZE=2", Launch(5, 8, 1, 2))
            for name in ("OMPI_COMM_WORLD", "MV2_COMM_WORLD")
        ),
        ("PALS_RANKID=3 PMI_SIZE=4 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=2", Launch(3, 4, 1, 2)),
        ("SLURM_PROCID=7 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=3 SLURM_STEP_TASKS_PER_NODE=4(x2)", Launch(7, 8, 3, 4)),
        # Other numbers of tasks on each host; this is the third.
        (
            "SLURM_PROCID=8 SLURM_STEP_NUM_TASKS=9 SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=4(x2),1",
            Launch(8, 9, 0, 1),
        ),
        # `srun --mpi=pmi2`: PMI has no local rank.
        (
            "PMI_RANK=3 PMI_SIZE=4 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1 "
            "SLURM_STEP_TASKS_PER_NODE=2(x2)",
            Launch(3, 4, 1, 2),
        ),
        # MPICH inside a step of Slurm.
        (
            "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 "
            "SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1(x2)",
            Launch(3, 4, 1, 2),
        ),
        # A batch script under Slurm, outside srun, is one process.
        ("SLURM_PROCID=0 SLURM_NTASKS=8", Launch(0, 1, 0, 1)),
    ],
)
def test_place_of_a_process(environ, expected):
    assert launch_from_environment(variables(environ)) == expected


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0", "WORLD_SIZE=2"),  # torchrun
        ("PMIX_RANK=1 PMIX_SIZE=4", "PMIX_SIZE=4"),
        ("FLUX_JOB_SIZE=8", "FLUX_JOB_SIZE=8"),
        ("PMI_RANK=0 PMI_SIZE=2", "PMI_SIZE=2"),
    ],
)
def test_ranks_of_a_launcher_that_starts_none_of_tftrain_are_said(environ, name):
    assert unknown_launcher(variables(environ)).startswith(f"{name} is set, but this run has one rank of its own: ")
    assert launch_from_environment(variables(environ)) == Launch()
    assert unknown_launcher(variables(f"{environ} {HOROVOD}")) == ""
    assert unknown_launcher({"WORLD_SIZE": "1", "PMI_SIZE": "many"}) == ""
