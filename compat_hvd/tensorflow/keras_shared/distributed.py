"""What all wrapped Keras optimizers have, and how to recognise one."""

from __future__ import annotations

import inspect
from typing import Any, Sequence

from compat_hvd.tensorflow.keras_shared.options import Options
from compat_hvd.tensorflow.keras_shared.reducing import GradientReducer


class CallableList(list):
    """A list that returns itself when called: ``optimizer.variables`` and ``optimizer.variables()`` both work."""

    def __call__(self) -> CallableList:
        return self


class DistributedKerasOptimizer:
    """What all wrapped Keras optimizers have beside the methods of the optimizer itself."""

    _distribution: Options
    _reducer_or_none: GradientReducer  # a slot, so that it is not part of the shared state

    @property
    def _reducer(self) -> GradientReducer:
        try:
            return self._reducer_or_none
        except AttributeError:  # made by from_config
            object.__setattr__(self, "_reducer_or_none", GradientReducer(self._distribution, type(self)))
            return self._reducer_or_none

    @property
    def _agg_helper(self) -> Any:
        return self._reducer.aggregation

    @property
    def variables(self) -> CallableList:
        """The variables of the optimizer's state, as a list that may also be called."""
        variables = super().variables  # type: ignore[misc]
        return CallableList(variables() if inspect.ismethod(variables) else variables)

    def register_local_var(self, var: Any) -> None:
        """Leaves the gradient of a variable unreduced; it is divided by size() unless scale_local_gradients=False."""
        self._reducer.reduction.register_local(var)

    def _allreduce(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        return [gradient for gradient, _ in self._reducer.hand_out(list(zip(grads, vars)))]


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer, or one inside of it, reduces gradients."""
    if isinstance(optimizer, DistributedKerasOptimizer):
        return True
    inner = getattr(optimizer, "inner_optimizer", None)
    return inner is not None and is_distributed(inner)
