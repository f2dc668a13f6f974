"""Loading models of ``tf.keras``, and the variables in its session."""

from __future__ import annotations

from typing import Any, Sequence

from tensorflow import keras

from compat_hvd.tensorflow.compression import Compression, Compressor
from compat_hvd.tensorflow.keras_shared.models import broadcast_in_keras_session, load_with_optimizer


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a saved model and wraps its optimizer in DistributedOptimizer, with the state that was saved.

    Args:
        filepath: what ``keras.models.load_model`` takes.
        custom_optimizers: optimizer classes of the user's that the model may have been saved with.
        custom_objects: as in ``keras.models.load_model``.
        compression: how gradients are sent.
        legacy_opts: load optimizers as those of ``keras.optimizers.legacy`` (Keras 2).

    Raises:
        ValueError: as Keras, for example if the file does not exist.
    """
    return load_with_optimizer(keras, filepath, custom_optimizers, custom_objects, compression, legacy_opts)


def broadcast_global_variables(root_rank: int) -> None:
    """Gives every rank the root's values of all global variables, in the session of Keras.

    Args:
        root_rank: the rank whose values are sent.

    Raises:
        RuntimeError: in eager mode, where the callback or ``broadcast_variables`` does this.
        ValueError: before ``init()``.
    """
    broadcast_in_keras_session(keras, root_rank)
