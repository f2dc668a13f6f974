"""Gradient compression: what a tensor is turned into before it is reduced, and back."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Compressor:
    """Two static methods; what ``compress`` returns second is handed to ``decompress``."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor to be sent and the context needed to restore it."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Restores a received tensor."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Returns the tensor itself."""
        return tensor


class FP16Compressor(Compressor):
    """Sends float32 and float64 tensors as float16; others as they are."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Casts to float16; the context is the original dtype."""
        dtype = tensor.dtype.base_dtype
        return (tf.cast(tensor, tf.float16) if dtype in (tf.float32, tf.float64) else tensor), dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Casts back to the original dtype."""
        return tensor if tensor.dtype.base_dtype == ctx else tf.cast(tensor, ctx)


class Compression:
    """The choices for ``compression=``."""

    none = NoneCompressor
    fp16 = FP16Compressor
