"""Overlapping process sets in one step, then idleness. Prints one line when every value was right."""

import resource
import time

import numpy as np
import tensorflow.compat.v1 as tf

import compat_hvd.tensorflow as hvd


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


tf.disable_v2_behavior()
sets = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2])]
hvd.init(process_sets=sets)
sets.append(hvd.global_process_set)
mine = [process_set for process_set in sets if process_set.included()]
# Every rank has its own order, and the sizes need one chunk, several, and several with a rest.
if hvd.rank() % 2:
    mine.reverse()
fed = tf.placeholder(tf.float64, [])
sums = {}
for process_set in mine:
    for elements in (1, 1000, 100001):
        name = f"set{process_set.process_set_id}_{elements}"
        value = tf.fill([elements], fed + process_set.process_set_id)
        sums[name] = hvd.allreduce(value, op=hvd.Sum, name=name, process_set=process_set)
expected_ranks = {process_set.process_set_id: process_set.ranks for process_set in sets}

with tf.Session(config=hvd.session_config(inter_op_parallelism_threads=1)) as session:
    for step in range(100):
        results = session.run(sums, {fed: 10.0 * hvd.rank() + step})
        for name, result in results.items():
            number = int(name[3])
            expected = sum(10.0 * rank + step + number for rank in expected_ranks[number])
            assert (result == expected).all(), (step, name, np.unique(result), expected)

    before = cpu_seconds()
    time.sleep(4)
    print(f"rank {hvd.rank()} right, idle share {(cpu_seconds() - before) / 4:.4f}", flush=True)
