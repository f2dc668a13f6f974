"""What needs to know which Keras it is for: loading models, and the variables of the Keras session."""

from __future__ import annotations

from typing import Any, Sequence

from compat_hvd.tensorflow.compression import Compressor
from compat_hvd.tensorflow.functions import broadcast_global_variables
from compat_hvd.tensorflow.keras_shared import keras3
from compat_hvd.tensorflow.keras_shared.optimizer import DistributedOptimizer
from compat_hvd.tensorflow.keras_shared.sessions import keras_session


def load_with_optimizer(
    keras: Any,
    filepath: Any,
    custom_optimizers: Sequence[type] | None,
    custom_objects: dict[str, Any] | None,
    compression: type[Compressor],
    legacy_opts: bool,
) -> Any:
    """Loads a model and wraps its optimizer, which keeps the state that was saved with it.

    Args:
        keras: the module to load with; the others are the arguments of ``load_model``.
    """
    module = keras.optimizers.legacy if legacy_opts else keras.optimizers
    known = {name: cls for name, cls in vars(module).items() if isinstance(cls, type)}
    known.update((cls.__name__, cls) for cls in custom_optimizers or ())
    known.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
        keras3.forget_what_was_asked(model)
    return model


def broadcast_in_keras_session(keras: Any, root_rank: int) -> None:
    """Broadcasts all global variables of the graph in the session of ``keras``."""
    operation = broadcast_global_variables(root_rank)
    keras_session(keras).run(operation)
