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


def _to(half: tf.DType, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
    dtype = tensor.dtype.base_dtype
    return (tf.cast(tensor, half) if dtype in (tf.float32, tf.float64) else tensor), dtype


def _back(tensor: tf.Tensor, dtype: Any) -> tf.Tensor:
    return tensor if tensor.dtype.base_dtype == dtype else tf.cast(tensor, dtype)


class FP16Compressor(Compressor):
    """Sends float32 and float64 tensors as float16; others as they are."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Casts to float16; the context is the original dtype."""
        return _to(tf.float16, tensor)

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Casts back to the original dtype."""
        return _back(tensor, ctx)


class BF16Compressor(Compressor):
    """Sends float32 and float64 tensors as bfloat16, which has the range of float32; others as they are."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Casts to bfloat16; the context is the original dtype."""
        return _to(tf.bfloat16, tensor)

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Casts back to the original dtype."""
        return _back(tensor, ctx)


class Compression:
    """The choices for ``compression=``; ``bf16`` is an addition to Horovod's."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
