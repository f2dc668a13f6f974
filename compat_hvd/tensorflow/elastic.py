"""Elastic training on a fixed set of ranks: states of variables and models, and ``run``, which uses them."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Callable, Iterable, Sequence, TypeVar

import numpy as np
import tensorflow as tf

from compat_hvd.common import basics
from compat_hvd.common.elastic import ObjectState, State, run_fn
from compat_hvd.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from compat_hvd.tensorflow.objects import allgather_object, broadcast_object
from compat_hvd.tensorflow.variables import native

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "run",
]

Result = TypeVar("Result")

# What the kernels put before the message of an error after which a collective cannot complete.
_OURS = "HorovodInternalError: "


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Wraps a training function so that an internal error takes it back to the last commit instead of ending it.

    ``func(state, …)`` is called when the ranks have the same state. When a collective cannot complete, every rank goes
    back to its last commit, the engines are started anew, and ``func`` is called again. That takes all ranks: if one
    has died or ended, the job ends.

    Args:
        func: takes a ``TensorFlowState``, a ``TensorFlowKerasState`` or another ``State`` as its first argument.

    Returns:
        A function of the same arguments that returns what ``func`` does.

    Raises:
        HorovodInternalError: (the returned function) a rank has ended, or the error comes back again and again.
    """

    @functools.wraps(func)
    def converting(*args: Any, **kwargs: Any) -> Result:
        try:
            return func(*args, **kwargs)
        except tf.errors.UnknownError as error:
            if _OURS not in error.message:
                raise
            raise HorovodInternalError(error.message) from error

    return run_fn(converting, basics.restart)


class _Eager:
    """Reads and writes variables where ops run at once."""

    def read(self, variables: Sequence[Any]) -> list[Any]:
        """The values as arrays of their own."""
        return [np.array(native(variable).numpy()) for variable in variables]

    def write(self, variable: Any, value: Any) -> None:
        native(variable).assign(value)


class _InSession:
    """Reads and writes variables of a graph, to which it adds nothing: it may be finalised."""

    def __init__(self, session: Any) -> None:
        # A monitored session would call its hooks, which count steps.
        self._session = session.raw_session() if hasattr(session, "raw_session") else session

    def read(self, variables: Sequence[Any]) -> list[Any]:
        """The values as arrays."""
        return [np.asarray(value) for value in self._session.run(list(variables))]

    def write(self, variable: Any, value: Any) -> None:
        # An initializer assigns its second input, whatever that is; two variables may share it.
        assign = variable.initializer
        self._session.run(assign, {assign.inputs[1]: value})


class _VariablesState(ObjectState):
    """Variables, and objects as attributes. Subclasses say which variables."""

    def __init__(self, access: _Eager | _InSession, **kwargs: Any) -> None:
        super().__init__(broadcast_object, basics.rank, **kwargs)
        self._access = access
        self._save_variables()

    def _tracked(self) -> list[Any]:
        raise NotImplementedError

    def save(self) -> None:
        """Copies the variables' values and the attributes."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """Assigns the values that were saved, and sets the attributes."""
        for variable, value in zip(self._tracked(), self._values):
            self._access.write(variable, value)
        super().restore()

    def sync(self) -> None:
        """Gives every rank the values and attributes of rank 0, and saves them.

        Raises:
            ValueError: the ranks have different variables; on every rank.
            HorovodInternalError: a rank failed or left.
        """
        variables = self._tracked()
        _check_alike(variables)
        at_root = basics.rank() == 0
        values = self._access.read(variables) if at_root else []
        for number, variable in enumerate(variables):
            # One at a time, so that no copy of the whole model is made.
            packed = _pack(values[number]) if at_root else None
            packed = broadcast_object(packed, name=f"elastic.variable.{number}")
            if not at_root:
                self._access.write(variable, _unpack(packed, variable))
        self._save_variables()
        super().sync()

    def _saved(self) -> dict[str, Any]:
        return {**super()._saved(), "variables": [_pack(value) for value in self._values]}

    def _adopt(self, saved: dict[str, Any]) -> None:
        super()._adopt(saved)
        variables, packed = self._tracked(), saved["variables"]
        if len(variables) != len(packed):
            raise ValueError(f"the commit file holds {len(packed)} variables, but the state has {len(variables)}")
        self._values = [_unpack(one, variable) for one, variable in zip(packed, variables)]

    def _save_variables(self) -> None:
        self._values = self._access.read(self._tracked())


def _pack(value: Any) -> Any:
    # The bfloat16 of some versions cannot be pickled.
    return value if value.dtype.kind in "OSU" else (value.shape, value.tobytes())


def _unpack(packed: Any, variable: Any) -> Any:
    if isinstance(packed, np.ndarray):
        return packed
    shape, data = packed
    return np.frombuffer(data, tf.as_dtype(variable.dtype).base_dtype.as_numpy_dtype).reshape(shape)


def _check_alike(variables: Iterable[Any]) -> None:
    mine = [(tf.as_dtype(variable.dtype).base_dtype.name, str(variable.shape)) for variable in variables]
    everyone = allgather_object(mine, name="elastic.variables")
    odd = [rank for rank, theirs in enumerate(everyone) if theirs != everyone[0]]
    if odd:
        raise ValueError(
            f"the state's variables are not the same on all ranks: {_described(everyone[0])} on rank 0, but "
            f"{_described(everyone[odd[0]])} on rank {odd[0]} (different from rank 0: {odd}). Build the model and the "
            "optimizer on every rank in the same way before sync()"
        )


def _described(variables: Sequence[tuple[str, str]]) -> str:
    return f"{len(variables)} variables, the last {' '.join(variables[-1])}" if variables else "no variables"


class TensorFlowState(_VariablesState):
    """Variables of TensorFlow, and further objects as attributes.

    Args:
        variables: the variables; by default the global ones of the default graph. In eager mode there is no such
            collection.
        session: in a graph, the session that holds their values, by default the default session. They must be
            initialised.
        kwargs: the attributes and their first values.

    Raises:
        ValueError: in a graph, there is no session.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        eager = tf.executing_eagerly()
        if variables is None and eager:
            warnings.warn(
                "hvd.elastic.TensorFlowState without variables keeps none in eager mode; give variables=…", stacklevel=2
            )
        chosen = tf.compat.v1.global_variables() if variables is None else variables
        self.variables = list(chosen)
        self.session = None if eager else session or tf.compat.v1.get_default_session()
        if not eager and self.session is None:
            raise ValueError("hvd.elastic.TensorFlowState needs a session in a graph: give session=…")
        super().__init__(_Eager() if eager else _InSession(self.session), **kwargs)

    def _tracked(self) -> list[Any]:
        return self.variables


class TensorFlowKerasState(_VariablesState):
    """The weights of a Keras model, the variables of its optimizer, and further objects as attributes.

    Args:
        model: a built model of Keras 2 or 3.
        optimizer: by default that of the compiled model.
        backend: Keras 2 in a graph: its backend module, from which the session comes; by default the default session.
        kwargs: the attributes and their first values.

    Raises:
        ValueError: the model is not built; in a graph, there is no session.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        self.backend = backend
        super().__init__(self._find_access(), **kwargs)

    def _find_access(self) -> _Eager | _InSession:
        if tf.executing_eagerly():
            return _Eager()
        session = self.backend.get_session() if self.backend else tf.compat.v1.get_default_session()
        if session is None:
            raise ValueError("hvd.elastic.TensorFlowKerasState needs a session in a graph: give backend=keras.backend")
        return _InSession(session)

    def _tracked(self) -> list[Any]:
        # Asked anew every time, since an optimizer makes its variables late. The states of random numbers are no
        # weights: the ranks' dropout must differ.
        return [*self.model.weights, *_optimizer_variables(self.optimizer, self.model.trainable_weights)]


def _optimizer_variables(optimizer: Any, weights: list[Any]) -> list[Any]:
    if optimizer is None:
        return []
    if tf.executing_eagerly():
        # Before the first step there may be none, or not all; on ranks that have made one there would be more.
        build = getattr(optimizer, "build", None) or getattr(optimizer, "_create_all_weights", None)
        if build is not None and not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
            build(weights)
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)
