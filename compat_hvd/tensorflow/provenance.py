"""Where a gradient comes from: whether a reduction over the ranks lies behind it already.

An optimizer that is given gradients cannot tell by looking at them. In a graph the ops that led to a gradient can be
followed back; an eager tensor carries a mark of its own, which what is computed from it does not have.
"""

from __future__ import annotations

from typing import Any, Container, Iterator, Sequence, Tuple
from weakref import WeakKeyDictionary

import tensorflow as tf

_MARK = "_compat_hvd_reduced"
Place = Tuple[int, str]  # of an op: its graph and name
_NOT_VALUES = (tf.resource, tf.variant)

# Names instead of ops, because an op keeps its graph alive.
_marked_in: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def mark_reduced(gradients: Sequence[Any]) -> None:
    """Marks the results of a reduction; None among them is passed over."""
    for gradient in gradients:
        if gradient is None:
            continue
        tensor = _values(gradient)
        graph = _graph(tensor)
        if graph is None:
            setattr(tensor, _MARK, True)
        else:
            _marked_in.setdefault(graph, set()).add(tensor.op.name)


def reduced_already(gradients: Sequence[Any]) -> list[bool]:
    """For each gradient whether it was marked or, in a graph, computed from something that was; False for None."""
    unmarked: set[Place] = set()  # shared: each op is looked at once, however many gradients it lies behind
    return [gradient is not None and _is_marked(_values(gradient), unmarked) for gradient in gradients]


def may_come_from_elsewhere(gradient: Any) -> bool:
    """Whether a gradient can have been computed outside of the present graph: nothing behind it reads a variable."""
    behind = _behind(_values(gradient), set())
    return not any(source.dtype == tf.resource for one in behind if _graph(one) is not None for source in one.op.inputs)


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _graph(tensor: Any) -> Any:
    return getattr(tensor, "graph", None)  # Eager tensors have none.


def _is_marked(tensor: Any, unmarked: set[Place]) -> bool:
    seen: set[Place] = set()
    for one in _behind(tensor, seen, unmarked):
        graph = _graph(one)
        if getattr(one, _MARK, False) if graph is None else one.op.name in _marked_in.get(graph, ()):
            return True
    unmarked |= seen
    return False


def _behind(tensor: Any, seen: set[Place], known: Container[Place] = ()) -> Iterator[Any]:
    """Yields a tensor and those that it was computed from, one for each op.

    The ops are put into ``seen``; what is ``known`` is not followed.
    """
    waiting = [tensor]
    outer_of: dict[int, dict[int, Any]] = {}
    while waiting:
        one = waiting.pop()
        graph = _graph(one)
        if graph is None:
            yield one
            continue
        place = (id(graph), one.op.name)
        if place in seen or place in known:
            continue
        seen.add(place)
        yield one
        waiting += [source for source in one.op.inputs if source.dtype not in _NOT_VALUES]
        if one.op.type == "Placeholder":  # perhaps what a branch or a function has captured
            if id(graph) not in outer_of:
                outer_of[id(graph)] = {id(inner): outer for outer, inner in getattr(graph, "captures", ())}
            outer = outer_of[id(graph)].get(id(one))
            if outer is not None:
                waiting.append(outer)
