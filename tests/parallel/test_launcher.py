"""A process's place is read from the environment of each launcher."""

import pytest

from tftrain.parallel.launcher import Launch, launch_from_environment


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Launch(0, 1, 0, 1)),
        (
            {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "8", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"},
            Launch(3, 8, 1, 2),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "6",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            Launch(5, 6, 1, 2),
        ),
        (
            {
                "SLURM_PROCID": "7",
                "SLURM_STEP_NUM_TASKS": "8",
                "SLURM_LOCALID": "3",
                "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
            },
            Launch(7, 8, 3, 4),
        ),
        # A batch script under Slurm, outside srun, is one process.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Launch(0, 1, 0, 1)),
    ],
)
def test_place_of_a_process(environ, expected):
    assert launch_from_environment(environ) == expected
