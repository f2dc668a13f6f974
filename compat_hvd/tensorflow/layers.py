"""Keras layers, of whichever Keras they come from, seen without importing one."""

from __future__ import annotations

from typing import Any, Iterable


def _is_layer(value: Any) -> bool:
    return any(cls.__name__ == "Layer" and "keras" in cls.__module__ for cls in type(value).__mro__)


def checked_layers(local_layers: Any) -> list[Any]:
    """Returns the argument ``local_layers`` as a list; None means none.

    Raises:
        ValueError: it is neither a layer nor a list of layers.
    """
    if local_layers is None:
        return []
    layers = list(local_layers) if isinstance(local_layers, (list, tuple)) else [local_layers]
    strangers = sorted({type(layer).__name__ for layer in layers if not _is_layer(layer)})
    if strangers:
        raise ValueError(f"local_layers must be a Keras layer or a list of layers, got {', '.join(strangers)}")
    return layers


def trainable_variables(layers: Iterable[Any]) -> list[Any]:
    """The trainable variables that the layers have now."""
    return [variable for layer in layers for variable in layer.trainable_weights]
