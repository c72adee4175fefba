"""Collectives between two real ranks, and what they are on one."""

import numpy as np
import pytest
import tensorflow as tf

from tests.kit.ranks import run_ranks
from tftrain.parallel import collectives
from tftrain.parallel.gradient_reduction import all_reduce_sum
from tftrain.parallel.mesh import Mesh


def test_one_rank_talks_to_nobody():
    world = Mesh().world
    tensor = tf.constant([1.0, 2.0])
    assert all_reduce_sum(world, [tensor], "x")[0] is tensor
    assert collectives.all_gather_rows(world, tensor, "x") is tensor
    np.testing.assert_array_equal(collectives.gather_numbers(world, 3.5, "x"), [3.5])


def test_shares_of_a_batch_are_contiguous_and_complete():
    shares = [Mesh(rank, 4).data.share(12) for rank in range(4)]
    assert shares == [(0, 3), (3, 6), (6, 9), (9, 12)]


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        ("Horovod has been shut down. This was caused by an exception on one of the ranks", True),
        ("[/tmp/third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [127.0.0.1]:1: Connection reset", True),
        ("Incompatible shapes: [2] vs. [3]", False),
    ],
)
def test_a_lost_rank_is_told_from_other_errors(words, lost):
    assert collectives.is_peer_failure(tf.errors.UnknownError(None, None, words)) == lost


@pytest.mark.parametrize(
    ("kind", "lost"), [(tf.errors.UnavailableError, True), (tf.errors.InvalidArgumentError, False)]
)
def test_of_tensorflows_collectives_the_class_of_the_error_tells(kind, lost):
    assert collectives.is_peer_failure(kind(None, None, "Collective ops is aborted by: Socket closed")) == lost


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


@pytest.mark.parametrize(("size", "tensor", "pipeline"), [(1, 1, 1), (12, 3, 1), (12, 3, 2), (16, 2, 4), (6, 1, 6)])
def test_every_rank_is_in_one_group_of_each_kind(size, tensor, pipeline):
    meshes = [Mesh(rank, size, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline) for rank in range(size)]
    sizes = {"data": size // tensor // pipeline, "tensor": tensor, "pipeline": pipeline, "world": size}
    for kind, expected in sizes.items():
        groups = {getattr(mesh, kind).ranks for mesh in meshes}
        assert sorted(rank for ranks in groups for rank in ranks) == list(range(size))
        assert {len(ranks) for ranks in groups} == {expected}
    for mesh in meshes:
        places = mesh.tensor.rank, mesh.data.rank, mesh.pipeline.rank
        assert mesh.rank == places[0] + tensor * (places[1] + sizes["data"] * places[2])


def test_neighbours_split_layers_and_stages_lie_apart():
    mesh = Mesh(7, 12, tensor_parallel_size=3, pipeline_parallel_size=2)
    assert (mesh.tensor.ranks, mesh.data.ranks, mesh.pipeline.ranks) == ((6, 7, 8), (7, 10), (1, 7))
    # Ranks of one tensor parallel group see the same samples.
    assert {Mesh(rank, 12, tensor_parallel_size=3).data.share(8) for rank in (6, 7, 8)} == {(4, 6)}
