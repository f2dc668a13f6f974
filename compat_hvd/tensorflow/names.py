"""Names of collectives: of the node in the graph, and the one by which the ranks match it.

The node's name is the fallback for matching. Where a better one is known while the graph is built (the user's
``name=``, the variable of a gradient), it is handed to the op, because inlining of functions, or one more op on one
rank, shifts node names but not these.
"""

from __future__ import annotations

import re
from typing import Any, Iterable, NamedTuple
from weakref import WeakKeyDictionary

import tensorflow as tf

# Graphs of branches and loop bodies: they are traced once, within the graph they belong to.
_CONTROL_FLOW_GRAPHS = frozenset(["CondBranchFuncGraph", "WhileCondFuncGraph", "WhileBodyFuncGraph"])

# Keyed weakly: a graph that the user drops must not be kept alive by its names.
_agreed_in: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()
_owners_in: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()


class CollectiveName(NamedTuple):
    """``node`` names the op (None: TensorFlow's choice); ``agreed`` is matched over ranks ("": the node's name)."""

    node: str | None
    agreed: str


def normalized(text: str) -> str:
    """Replaces what may not stand in the name of a node."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


def _claim(name: str, taken: dict[str, int]) -> str:
    """Returns ``name``, or ``name_1``, ``name_2``, … if it is taken; ``taken`` holds the next number for each name."""
    number = taken.get(name, 0)
    candidate = f"{name}_{number}" if number else name
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    taken[candidate] = 1
    taken[name] = number + 1
    return candidate


def counting_graph() -> Any:
    """The graph within which names must be unique: the current one, or the one around its branch or loop body."""
    graph = tf.compat.v1.get_default_graph()
    while type(graph).__name__ in _CONTROL_FLOW_GRAPHS:
        graph = graph.outer_graph
    return graph


def collective_name(
    op_type: str, tensor: Any, name: str | None, ignore_name_scope: bool = False, agreed: str = ""
) -> CollectiveName:
    """Names one collective.

    Args:
        op_type: for example ``"HorovodAllreduce"``.
        tensor: the input, or a list of inputs, whose first and last name are part of the default.
        name: what the user gave, or None.
        ignore_name_scope: leave the name scopes out of the agreed name.
        agreed: the agreed name where it is known already; ``name`` is then only the node's.
    """
    if tf.executing_eagerly():
        return CollectiveName(name, agreed or name or "")
    if name is None:
        inputs = f"{tensor[0].name}_{tensor[-1].name}" if isinstance(tensor, list) else tensor.name
        return CollectiveName(f"{op_type}_{normalized(inputs)}", agreed)
    if agreed:
        return CollectiveName(name, agreed)
    scope = "" if ignore_name_scope else tf.compat.v1.get_default_graph().get_name_scope()
    base = f"{scope}/{name}" if scope else name
    return CollectiveName(name, _claim(base, _agreed_in.setdefault(counting_graph(), {})))


def variable_names(variables: Iterable[Any]) -> list[str]:
    """Names of variables without ``:0``, made different where several have the same (possible in eager mode)."""
    return _claim_all((_plain_name(variable) for variable in variables), {})


def source_names(prefix: str, sources: Iterable[Any], generic: bool) -> list[str]:
    """Names for the gradients of one call that has no optimizer to be named after.

    Within a graph the k-th gradient of a variable gets the k-th name of that variable, so that ranks may make their
    calls, and list the variables of one, in different orders, and may trace a graph more or less often.

    Args:
        prefix: what the names begin with.
        sources: variables; other tensors are named after their position, because their own names, where they have
            any, depend on the graph.
        generic: name all after their position.
    """
    taken = {} if tf.executing_eagerly() else _agreed_in.setdefault(counting_graph(), {})
    named = enumerate(sources)
    plain = (f"grad_{i}" if generic or not _is_variable(source) else _plain_name(source) for i, source in named)
    return _claim_all((f"{prefix}/{name}" for name in plain), taken)


def _is_variable(source: Any) -> bool:
    # A Keras 3 variable is no tf.Variable.
    return isinstance(source, tf.Variable) or hasattr(source, "path")


def _plain_name(variable: Any) -> str:
    name: str = getattr(variable, "path", variable.name)
    return name.split(":")[0]


def _claim_all(names: Iterable[str], taken: dict[str, int]) -> list[str]:
    return [_claim(name, taken) for name in names]


class GradientScope:
    """Gives each ``compute_gradients`` call of one optimizer a prefix of its own, the same on every rank.

    It is made of the optimizer's name, its number among the optimizers of that name in the graph, and the count of its
    calls in the graph. Eager calls follow one another and share a prefix.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._prefix_in: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._calls_in: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def next_prefix(self) -> str:
        """Returns the prefix for one more call in the current graph."""
        if tf.executing_eagerly():
            return self._owner
        graph = counting_graph()
        if graph not in self._prefix_in:
            self._prefix_in[graph] = _claim(self._owner, _owners_in.setdefault(graph, {}))
        call = self._calls_in.get(graph, 0)
        self._calls_in[graph] = call + 1
        return f"{self._prefix_in[graph]}/{call}"
