"""A process's place is read from the environment of each launcher."""

import pytest

from tftrain.parallel import launcher
from tftrain.parallel.launcher import Launch, launch_from_environment

OPEN_MPI, SLURM = "OMPI_COMM_WORLD_", "SLURM_STEP_"
PLACES = {
    "": Launch(0, 1, 0, 1),
    "HOROVOD_RANK=3 HOROVOD_SIZE=8 HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=2": Launch(3, 8, 1, 2),
    f"{OPEN_MPI}RANK=5 {OPEN_MPI}SIZE=6 {OPEN_MPI}LOCAL_RANK=1 {OPEN_MPI}LOCAL_SIZE=2": Launch(5, 6, 1, 2),
    f"SLURM_PROCID=7 {SLURM}NUM_TASKS=8 SLURM_LOCALID=3 {SLURM}TASKS_PER_NODE=4(x2)": Launch(7, 8, 3, 4),
    # Other numbers of tasks on each host: this is the third.
    f"SLURM_PROCID=8 {SLURM}NUM_TASKS=9 SLURM_LOCALID=0 SLURM_NODEID=2 {SLURM}TASKS_PER_NODE=4(x2),1": Launch(
        8, 9, 0, 1
    ),
    # `srun --mpi=pmi2`: PMI has no local rank.
    f"PMI_RANK=3 PMI_SIZE=4 SLURM_PROCID=3 {SLURM}NUM_TASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1 "
    f"{SLURM}TASKS_PER_NODE=2(x2)": Launch(3, 4, 1, 2),
    # MPICH inside a step of Slurm.
    f"PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 SLURM_PROCID=1 {SLURM}NUM_TASKS=2 SLURM_LOCALID=0 "
    f"{SLURM}TASKS_PER_NODE=1(x2)": Launch(3, 4, 1, 2),
    # A batch script under Slurm, outside srun, is one process.
    "SLURM_PROCID=0 SLURM_NTASKS=8": Launch(0, 1, 0, 1),
    # Cray and MVAPICH.
    "PALS_RANKID=3 PMI_SIZE=4 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=2": Launch(3, 4, 1, 2),
    "MV2_COMM_WORLD_RANK=5 MV2_COMM_WORLD_SIZE=8 MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=2": Launch(
        5, 8, 1, 2
    ),
}


@pytest.mark.parametrize("environ", PLACES)
def test_place_of_a_process(environ):
    assert launch_from_environment(dict(each.split("=") for each in environ.split())) == PLACES[environ]


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "WORLD_SIZE=2"),  # torchrun
        ({"PMIX_RANK": "1", "PMIX_SIZE": "4"}, "PMIX_SIZE=4"),
        ({"FLUX_JOB_SIZE": "8"}, "FLUX_JOB_SIZE=8"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "PMI_SIZE=2"),
    ],
)
def test_ranks_of_a_launcher_that_starts_none_of_tftrain_are_said(environ, name):
    assert launcher.unknown_launcher(environ).startswith(f"{name} is set, but this run has one rank of its own: ")
    assert launcher.launch_from_environment(environ) == launcher.Launch()
    horovod = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0"}
    assert launcher.unknown_launcher({**environ, **horovod}) == ""
    assert launcher.unknown_launcher({"WORLD_SIZE": "1", "PMI_SIZE": "many"}) == ""
