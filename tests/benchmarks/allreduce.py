"""What one allreduce of two ranks costs a TensorFlow session, beside MPI's own in the same run.

    compat-hvdrun -np 2 python tests/benchmarks/allreduce.py [--sizes 4 65536 …] [--rounds N]

For each size it prints medians and minima, in microseconds, of
  graph      session.run of placeholder → allreduce → fetch
  identity   the same graph with tf.identity in the place of the allreduce
  overhead   the difference of the two: what the collective itself costs
  MPI        MPI_Allreduce of the same bytes through mpi4py, without TensorFlow
The ranks meet in a barrier before each measured run, so that nobody's lateness counts as cost.
"""

import argparse
import statistics
import time

import numpy as np
import tensorflow.compat.v1 as tf
from mpi4py import MPI

import compat_hvd.tensorflow as hvd

WARM_UP = 20


def time_runs(action, rounds):
    """Returns the microseconds that each of ``rounds`` calls took, the slowest rank counting."""
    comm = MPI.COMM_WORLD
    taken = np.empty(rounds + WARM_UP)
    for i in range(len(taken)):
        comm.Barrier()
        start = time.perf_counter()
        action()
        taken[i] = time.perf_counter() - start
    slowest = np.empty_like(taken)
    comm.Allreduce(taken, slowest, op=MPI.MAX)
    return slowest[WARM_UP:] * 1e6


def graph_runs(build, values, rounds):
    with tf.Graph().as_default():
        fed = tf.placeholder(tf.float32, values.shape)
        run = tf.Session(config=hvd.session_config()).make_callable(build(fed), [fed])
        return time_runs(lambda: run(values), rounds)


def mpi_runs(values, rounds):
    result = np.empty_like(values)
    return time_runs(lambda: MPI.COMM_WORLD.Allreduce(values, result), rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 4096, 262144, 4194304, 67108864], metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=300)
    args = parser.parse_args()
    tf.disable_v2_behavior()
    hvd.init()
    if hvd.rank() == 0:
        print(f"{'bytes':>12}  {'graph median (min)':>24}  {'identity':>24}  {'overhead':>10}  {'MPI':>24}")
    for size in args.sizes:
        values = np.full(size // 4, hvd.rank() + 1.0, np.float32)
        rounds = max(9, min(args.rounds, (1 << 30) // size))
        graph = graph_runs(lambda x: hvd.allreduce(x, op=hvd.Sum, name="benchmark"), values, rounds)
        identity = graph_runs(tf.identity, values, rounds)
        mpi = mpi_runs(values, rounds)
        if hvd.rank() == 0:
            columns = [f"{statistics.median(runs):.0f} ({min(runs):.0f})" for runs in (graph, identity, mpi)]
            overhead = f"{statistics.median(graph) - statistics.median(identity):.0f}"
            print(f"{size:12d}  {columns[0]:>24}  {columns[1]:>24}  {overhead:>10}  {columns[2]:>24}", flush=True)


if __name__ == "__main__":
    main()
