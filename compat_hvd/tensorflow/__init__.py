"""``import compat_hvd.tensorflow as hvd``: Horovod's TensorFlow interface."""

from __future__ import annotations

from typing import Any as _Any

import compat_hvd.tensorflow.requirement  # noqa: F401  # isort: split
from compat_hvd.common.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from compat_hvd.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from compat_hvd.common.util import gpu_available
from compat_hvd.tensorflow import compression, elastic, functions, gradient_aggregation, mpi_ops, sync_batch_norm, util
from compat_hvd.tensorflow.adasum_optimizer import _DistributedAdasumOptimizer
from compat_hvd.tensorflow.alltoall import alltoall
from compat_hvd.tensorflow.compression import Compression
from compat_hvd.tensorflow.functions import broadcast_, broadcast_global_variables, broadcast_variables
from compat_hvd.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from compat_hvd.tensorflow.grouped import _grouped_allreduce, grouped_allgather, grouped_allreduce
from compat_hvd.tensorflow.hooks import BroadcastGlobalVariablesHook, _SessionRunHook
from compat_hvd.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from compat_hvd.tensorflow.ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    _allreduce,
    allgather,
    barrier,
    broadcast,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from compat_hvd.tensorflow.optimizer import (
    DistributedOptimizer,
    _DistributedOptimizer,
    _LegacyOptimizer,
)
from compat_hvd.tensorflow.reducescatter import (
    _grouped_reducescatter,
    _reducescatter,
    grouped_reducescatter,
    reducescatter,
)
from compat_hvd.tensorflow.reduction import allreduce, handle_average_backwards_compatibility
from compat_hvd.tensorflow.sessions import session_config
from compat_hvd.tensorflow.tape import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
    _DistributedGradientTape,
)
from compat_hvd.tensorflow.util import (
    _cache,
    _executing_eagerly,
    _make_subgraph,
    check_extension,
    check_num_rank_power_of_2,
    refs_to_vars,
    split_list,
    vars_to_refs,
)

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "_DistributedAdasumOptimizer",
    "_DistributedGradientTape",
    "_DistributedOptimizer",
    "_LegacyOptimizer",
    "_SessionRunHook",
    "_allreduce",
    "_cache",
    "_executing_eagerly",
    "_grouped_allreduce",
    "_grouped_reducescatter",
    "_make_subgraph",
    "_reducescatter",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_extension",
    "check_num_rank_power_of_2",
    "compression",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "functions",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "gradient_aggregation",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_ops",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "session_config",
    "shutdown",
    "size",
    "size_op",
    "split_list",
    "start_timeline",
    "stop_timeline",
    "sync_batch_norm",
    "util",
    "vars_to_refs",
]


def __getattr__(name: str) -> _Any:
    if name != "SyncBatchNormalization":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Asked for late, because it imports Keras.
    return sync_batch_norm.SyncBatchNormalization
