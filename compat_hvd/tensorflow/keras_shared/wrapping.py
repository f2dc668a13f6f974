"""Turning Keras optimizers into distributed ones: a class for each, made of its own and one of the families here.

A wrapped optimizer shares all state with the one it was made from, so that iterations, slots, learning rate and what a
checkpoint sees are the same; only its class differs.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

from compat_hvd.tensorflow.gradients import Groups
from compat_hvd.tensorflow.keras_shared import keras3
from compat_hvd.tensorflow.keras_shared.distributed import DistributedKerasOptimizer, is_distributed
from compat_hvd.tensorflow.keras_shared.options import Options
from compat_hvd.tensorflow.keras_shared.reducing import GradientReducer


class _Keras2(DistributedKerasOptimizer):
    """Keras 2 computes gradients in ``minimize`` and sums those of a tf.distribute strategy in ``apply_gradients``.

    A LossScaleOptimizer around the optimizer calls the methods for computing, summing and applying one by one, the
    last without summing and in a branch that depends on the gradients. Gradients are reduced when it has them summed:
    their scale is off by then, and all ranks take the same branch.
    """

    iterations: Any

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        apply = super().apply_gradients  # type: ignore[misc]
        pairs = list(grads_and_vars)
        if _wants_summing(apply, pairs, args, kwargs):
            pairs = self._take(pairs)
        else:
            self._reducer.forget([variable for _, variable in pairs])
        return self._reducer.apply(
            lambda: apply(pairs, *args, **kwargs), [gradient for gradient, _ in pairs], self.iterations
        )

    def _computed(self, pairs: Any) -> Any:
        if getattr(self, "_is_wrapped_by_loss_scale_optimizer", False):
            return pairs  # They are still scaled; they come back when they are not.
        return self._reducer.hand_out(pairs)

    def _take(self, pairs: Any) -> list[tuple[Any, Any]]:
        pairs = list(pairs)
        variables = [variable for _, variable in pairs]
        return list(zip(self._reducer.take([gradient for gradient, _ in pairs], variables), variables))


def _wants_summing(apply: Any, pairs: Any, args: Any, kwargs: Any) -> bool:
    """Whether the arguments of ``apply_gradients`` leave summing over replicas to the optimizer."""
    given = inspect.signature(apply).bind(pairs, *args, **kwargs).arguments
    given = {**given, **given.get("kwargs", {})}
    return not given.get("skip_gradients_aggregation", False) and given.get("experimental_aggregate_gradients", True)


class _Keras2Legacy(_Keras2):
    """Optimizers of Keras up to 2.10, later ``keras.optimizers.legacy``."""

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Any:
        return self._computed(super()._compute_gradients(loss, var_list, grad_loss, tape))  # type: ignore[misc]

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Returns the reduced gradients of a loss; for graph mode."""
        gradients = super().get_gradients(loss, params)  # type: ignore[misc]
        return [gradient for gradient, _ in self._reducer.hand_out(list(zip(gradients, params)))]

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        return super()._aggregate_gradients(self._take(grads_and_vars))  # type: ignore[misc]


class _Keras2New(_Keras2):
    """Optimizers of Keras 2.11 to 2.15 and of tf_keras."""

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        """Returns pairs (reduced gradient, variable)."""
        return self._computed(super().compute_gradients(loss, var_list, tape))  # type: ignore[misc]

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Any:
        if grad_loss is not None:
            raise ValueError(f"{type(self).__name__}: this kind of optimizer knows no grad_loss")
        return self.compute_gradients(loss, var_list, tape)

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """Reduces gradients that are not reduced yet."""
        return super().aggregate_gradients(self._take(grads_and_vars))  # type: ignore[misc]


class _Keras3(DistributedKerasOptimizer):
    """Keras 3 gives gradients to ``apply``, directly or through ``apply_gradients``."""

    built: bool
    _trainable_variables: list[Any]

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Updates the variables with the reduced gradients; the arguments are those of Keras."""
        apply = super().apply  # type: ignore[misc]
        grads = list(grads)
        given = None if trainable_variables is None else list(trainable_variables)
        if given and not self.built and self._reducer.aggregation is not None:
            # What follows stands in a branch, where no variables can be made.
            self.build(given)  # type: ignore[attr-defined]
        variables = given if given is not None else self._trainable_variables
        if len(grads) != len(variables):
            return apply(grads, given)  # Keras has something to say.
        if getattr(self, "inner_optimizer", None) is None:
            grads = self._reducer.take(grads, variables)
        else:
            grads = keras3.take_scaled(self, self._reducer, grads, variables)
        return self._reducer.apply(lambda: apply(grads, given), grads, _counter(self))


def _counter(optimizer: Any) -> Any:
    """The variable that counts the calls of ``apply``; of a LossScaleOptimizer that of the optimizer inside."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return optimizer._iterations if inner is None else _counter(inner)


FAMILIES = (
    (_Keras2Legacy, ("_compute_gradients", "_aggregate_gradients", "apply_gradients")),
    (_Keras2New, ("compute_gradients", "aggregate_gradients", "apply_gradients")),
    (_Keras3, ("apply", "apply_gradients", "update_step")),
)


def _family(optimizer: Any) -> Any:
    """The class to mix into an optimizer's, by the methods that it has; None if it is no Keras optimizer."""
    if isinstance(optimizer, type) or not hasattr(optimizer, "get_config"):
        return None
    return next((mixin for mixin, names in FAMILIES if all(hasattr(optimizer, name) for name in names)), None)


def is_keras_optimizer(optimizer: Any) -> bool:
    """Whether this is an optimizer of Keras 2 or 3."""
    return _family(optimizer) is not None


@functools.lru_cache(maxsize=None)
def _distributed_class(mixin: Any, base: Any, options: Options) -> Any:
    module = "horovod._keras" if "compat_hvd.legacy.horovod" in sys.modules else "compat_hvd._keras"
    members = {
        "__doc__": base.__doc__,
        "__module__": module,
        "__slots__": ("_reducer_or_none",),
        "_HAS_AGGREGATE_GRAD": True,
        "_distribution": options,
    }
    if "_keras_api_names" in vars(base):  # Keras 2 saves the class under this name.
        members["_keras_api_names"] = base._keras_api_names
    cls = type(base.__name__, (mixin, base), members)
    if mixin is _Keras3:
        keras3.publish(cls, base)
    return cls


def distributed(optimizer: Any, options: Options, groups: Groups = None) -> Any:
    """Wraps a Keras optimizer.

    Raises:
        ValueError: it is wrapped already.
        TypeError: it is no Keras optimizer.
    """
    mixin = _family(optimizer)
    if mixin is None:
        raise TypeError(f"hvd.DistributedOptimizer takes an optimizer, not {type(optimizer).__name__}")
    if is_distributed(optimizer):
        raise ValueError("this optimizer is a DistributedOptimizer already; its gradients would be reduced twice")
    if mixin is _Keras3:
        keras3.prepare()
    base: Any = type(optimizer)
    wrapped: Any = object.__new__(_distributed_class(mixin, base, options))
    object.__setattr__(wrapped, "__dict__", optimizer.__dict__)
    object.__setattr__(wrapped, "_reducer_or_none", GradientReducer(options, base, groups))
    return wrapped
