"""Collectives between two real ranks, and what they are on one."""

import numpy as np
import pytest
import tensorflow as tf

from tests.distributed import run_ranks
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh


def test_one_rank_talks_to_nobody():
    world = Mesh().world
    tensor = tf.constant([1.0, 2.0])
    assert collectives.all_reduce_sum(world, [tensor], "x")[0] is tensor
    assert collectives.all_gather_rows(world, tensor, "x") is tensor
    np.testing.assert_array_equal(collectives.gather_numbers(world, 3.5, "x"), [3.5])


def test_shares_of_a_batch_are_contiguous_and_complete():
    shares = [Mesh(rank, 4).data.share(12) for rank in range(4)]
    assert shares == [(0, 3), (3, 6), (6, 9), (9, 12)]


@pytest.mark.multirank
def test_two_ranks():
    output = run_ranks(2, ["-m", "tests.parallel.two_ranks"])
    assert output.count("two ranks agree") == 2


@pytest.mark.multirank
def test_a_failing_rank_ends_the_run_and_its_output_is_seen():
    output = run_ranks(
        2,
        ["-c", "import os, sys; print('rank', os.environ['HOROVOD_RANK'], 'speaks'); sys.exit(3)"],
        expected_code=3,
        horovodrun=True,
    )
    assert "rank 0 speaks" in output or "rank 1 speaks" in output


def test_every_rank_is_in_one_group_of_each_kind():
    meshes = [Mesh(rank, 12, tensor_parallel_size=3) for rank in range(12)]
    assert meshes[7].tensor.ranks == (6, 7, 8)
    assert meshes[7].data.ranks == (1, 4, 7, 10)
    assert (meshes[7].tensor.rank, meshes[7].data.rank) == (1, 2)
    for kind in ("tensor", "data"):
        groups = {getattr(mesh, kind).ranks for mesh in meshes}
        assert sorted(rank for ranks in groups for rank in ranks) == list(range(12))
    # Ranks of one tensor parallel group see the same samples.
    assert {mesh.data.share(8) for mesh in meshes if mesh.rank in (6, 7, 8)} == {(4, 6)}
