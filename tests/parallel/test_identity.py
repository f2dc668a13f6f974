"""Who am I, and how many are we: as functions and as ops."""

from __future__ import annotations

import os

import pytest
from world import RANK, SIZE, allgather

pytestmark = pytest.mark.node_split
SPLIT = os.environ.get("COMPAT_HVD_NODE_SPLIT")


def test_the_world_is_the_launched_one(hvd):
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size()) == (RANK, SIZE)


def test_a_second_init_changes_nothing(hvd):
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (RANK, SIZE)


def test_local_and_cross_ranks_number_the_nodes(hvd):
    places = allgather([hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()])
    sizes = [local_size for local_rank, local_size, _, _ in places if local_rank == 0]
    assert sum(sizes) == SIZE
    # On the nodes of one size every local rank occurs as often as there are such nodes.
    expected = sorted((rank, size) for size in sizes for rank in range(size))
    assert sorted((local_rank, local_size) for local_rank, local_size, _, _ in places) == expected
    for rank in range(max(sizes)):
        # One per node that has so many ranks, in the order of ranks.
        across = [(cross_rank, cross_size) for local_rank, _, cross_rank, cross_size in places if local_rank == rank]
        assert across == [(i, len(across)) for i in range(len(across))]
    assert hvd.is_homogeneous() == (len(set(sizes)) == 1)


@pytest.mark.skipif(not SPLIT, reason="COMPAT_HVD_NODE_SPLIT is not set")
def test_nodes_that_one_machine_acts_as(hvd):
    local = [(rank, int(size)) for size in SPLIT.split(",") for rank in range(int(size))]
    assert (hvd.local_rank(), hvd.local_size()) == local[RANK]


def test_scalar_ops(hvd, session):
    tensors = [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(), hvd.process_set_included_op()]
    assert session.run(tensors) == [RANK, SIZE, hvd.local_rank(), hvd.local_size(), 1]
    assert {tensor.dtype.name for tensor in tensors} == {"int32"}
    assert session.run(hvd.process_set_included_op(process_set_id=99)) == -3


def test_what_is_built_in(hvd):
    assert hvd.mpi_built()
    assert hvd.mpi_enabled()
    assert hvd.mpi_threads_supported() in (True, False)
    others = [hvd.gloo_built, hvd.gloo_enabled, hvd.nccl_built, hvd.ddl_built, hvd.ccl_built, hvd.cuda_built]
    assert not any(built() for built in [*others, hvd.rocm_built])


def test_global_process_set(hvd):
    everyone = hvd.global_process_set
    assert everyone.process_set_id == 0
    assert (everyone.size(), everyone.rank(), everyone.included()) == (SIZE, RANK, True)
    assert list(everyone.ranks) == list(range(SIZE))
