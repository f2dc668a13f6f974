"""Gradient tapes whose gradients are reduced over the ranks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import tensorflow as tf

from compat_hvd.common.process_sets import ProcessSet, global_process_set
from compat_hvd.tensorflow.compression import Compression, Compressor
from compat_hvd.tensorflow.gradients import Gradient, GradientReduction, Groups, checked_groups, predivided
from compat_hvd.tensorflow.layers import checked_layers, trainable_variables
from compat_hvd.tensorflow.names import source_names
from compat_hvd.tensorflow.ops import Average
from compat_hvd.tensorflow.reduction import Reduction

_NAME = "DistributedGradientTape"


class _DistributedGradientTape(tf.GradientTape):
    """A tape that wraps another and reduces the gradients it computes; everything else is that of the wrapped tape."""

    # Slots, since the other attributes are the wrapped tape's: see _wrap.
    __slots__ = ("_local_layers", "_reduction", "_wrapped")

    def register_local_source(self, source: Any) -> None:
        """Leaves the gradient of a source unreduced; it is divided by size() unless scale_local_gradients=False."""
        self._reduction.register_local(source)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Computes gradients with the wrapped tape and reduces them.

        Args:
            target, sources, output_gradients, unconnected_gradients: as of ``tf.GradientTape.gradient``; sources may be
                any nested structure.
            use_generic_names: ranks match the gradients by the positions of their sources instead of by the names of
                variables.

        Returns:
            The structure of ``sources``, with tensors of the sources' shapes and dtypes, ``tf.IndexedSlices`` and None.

        Raises:
            TypeError: a gradient of a dtype that cannot be reduced, or that is neither a tensor nor IndexedSlices.
            tf.errors.FailedPreconditionError: (when run) ranks disagree; on every rank.
        """
        _, gradients = self._reduced(target, sources, output_gradients, use_generic_names, unconnected_gradients)
        return tf.nest.pack_sequence_as(sources, gradients)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> tuple[list[tuple[Any, Gradient]], list[tuple[Any, Gradient]]]:
        """Computes gradients as ``gradient`` does and tells those of the local sources from the reduced ones.

        Returns:
            Two lists of pairs (source, gradient) in the order of ``sources``: those of local sources, and the others.
        """
        pairs = list(zip(*self._reduced(target, sources, output_gradients, use_generic_names, unconnected_gradients)))
        local = [pair for pair in pairs if self._reduction.is_local(pair[0])]
        return local, [pair for pair in pairs if not self._reduction.is_local(pair[0])]

    # The base class would compute them with the gradient method above.

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the wrapped tape's ``jacobian``; nothing is reduced."""
        return self._wrapped.jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the wrapped tape's ``batch_jacobian``; nothing is reduced."""
        return self._wrapped.batch_jacobian(*args, **kwargs)

    def _reduced(
        self, target: Any, sources: Any, output_gradients: Any, use_generic_names: bool, unconnected_gradients: Any
    ) -> tuple[list[Any], list[Gradient]]:
        """The sources and their gradients, flat."""
        if not isinstance(use_generic_names, bool):
            raise TypeError(
                f"use_generic_names={use_generic_names!r} is no bool; give unconnected_gradients by its keyword"
            )
        gradients = self._wrapped.gradient(
            target, sources, output_gradients=output_gradients, unconnected_gradients=unconnected_gradients
        )
        # Asked late: a layer may have got its variables in the forward pass that this tape recorded.
        for variable in trainable_variables(self._local_layers):
            self._reduction.register_local(variable)
        flat = tf.nest.flatten(sources)
        with tf.name_scope(f"{_NAME}_Allreduce"):
            names = source_names(_NAME, flat, use_generic_names)
            return flat, self._reduction.apply_named(tf.nest.flatten(gradients), flat, names)


@lru_cache(maxsize=None)
def _class_for(tape_class: Any) -> Any:
    bases = (_DistributedGradientTape,) if tape_class is tf.GradientTape else (_DistributedGradientTape, tape_class)
    return type(tape_class.__name__, bases, {"__slots__": ()})


def _wrap(tape: Any, reduction: GradientReduction, local_layers: list[Any]) -> Any:
    """Puts a second face on a tape: both have one state, whichever of them is entered, watched with or stopped."""
    if isinstance(tape, _DistributedGradientTape):
        raise ValueError("this tape is a DistributedGradientTape already; its gradients would be reduced twice")
    if not isinstance(tape, tf.GradientTape):
        raise TypeError(f"hvd.DistributedGradientTape takes a tf.GradientTape, not {type(tape).__name__}")
    tape_class: Any = type(tape)
    cls = _class_for(tape_class)
    wrapper = cls.__new__(cls)
    wrapper.__dict__ = tape.__dict__
    wrapper._wrapped, wrapper._reduction, wrapper._local_layers = tape, reduction, local_layers
    return wrapper


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """Wraps a gradient tape so that its gradients are reduced over the ranks.

    The tape may be wrapped before, while or after it records, also as
    ``with hvd.DistributedGradientTape(tf.GradientTape()) as tape``. Jacobians are not reduced.

    Args:
        gradtape: the tape to wrap.
        device_dense, device_sparse: the device to place reductions on, for dense gradients and IndexedSlices.
        compression: how dense gradients are sent: ``Compression.none`` or ``Compression.fp16``.
        sparse_as_dense: turn IndexedSlices into dense gradients before the reduction.
        op: Average, Sum, Min, Max or Product.
        gradient_predivide_factor: with Average, divide by it before the sum and multiply with it after.
        num_groups: older form of ``groups``.
        groups: a number of groups, or lists of variables, whose gradients are submitted together; this changes no
            result.
        process_set: the ranks taking part; on other ranks gradients stay as they are.
        scale_local_gradients: divide gradients of sources given to ``register_local_source`` by the number of ranks.

    Returns:
        A ``tf.GradientTape`` of the wrapped tape's class with ``register_local_source`` and
        ``get_local_and_global_gradients``. Its ``gradient`` takes ``use_generic_names`` as well.

    Raises:
        ValueError: arguments that do not go together; the tape is wrapped already.
        TypeError: ``gradtape`` is no tape.
    """
    return PartialDistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """Wraps a gradient tape so that its gradients are reduced over the ranks, but for those of some layers.

    Args:
        local_layers: a Keras layer or a list of layers whose trainable variables belong to this rank only. A layer may
            be built later.
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups,
            groups, process_set, scale_local_gradients: as of ``DistributedGradientTape``.

    Returns:
        As ``DistributedGradientTape``.

    Raises:
        ValueError: ``local_layers`` are no layers, and as ``DistributedGradientTape``.
        TypeError: as ``DistributedGradientTape``.
    """
    prescale, postscale = predivided(op, gradient_predivide_factor)
    groups = checked_groups(num_groups, groups)
    how = Reduction(op, prescale, postscale, compression, device_dense, device_sparse, process_set)
    reduction = GradientReduction(how, sparse_as_dense, groups, scale_local_gradients)
    return _wrap(gradtape, reduction, checked_layers(local_layers))
