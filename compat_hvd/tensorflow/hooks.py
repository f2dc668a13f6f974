"""A session hook that synchronises the ranks when a session starts."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from compat_hvd.tensorflow.functions import broadcast_global_variables

_SessionRunHook = tf.compat.v1.train.SessionRunHook


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Broadcasts all global variables from the root after a session was created (and restored).

    Usable for any number of graphs and sessions; a graph gets one broadcast op, however many sessions it serves.

    Args:
        root_rank: the rank whose values are sent.
        device: the device to place the ops on; "" for TensorFlow's choice.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: tf.Operation | None = None
        # Names instead of ops, because an op keeps its graph alive.
        self._built_in: WeakKeyDictionary[Any, tuple[list[str], str]] = WeakKeyDictionary()

    def begin(self) -> None:
        """Builds the broadcast op, unless this graph has it and no variable has been added since."""
        graph = tf.compat.v1.get_default_graph()
        variables = [variable.name for variable in tf.compat.v1.global_variables()]
        known, op_name = self._built_in.get(graph, ([], ""))
        if op_name and known == variables:
            self.bcast_op = graph.get_operation_by_name(op_name)
            return
        with tf.device(self.device):
            self.bcast_op = broadcast_global_variables(self.root_rank)
        self._built_in[graph] = (variables, self.bcast_op.name)

    def after_create_session(self, session: tf.compat.v1.Session, coord: Any) -> None:
        """Runs the broadcast."""
        session.run(self.bcast_op)
