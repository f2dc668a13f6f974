"""Adasum in NumPy, as it is defined: recursively, in double."""

from __future__ import annotations

import numpy as np


def pair(a, b):
    """The adaptive sum of two vectors."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    dot, of_a, of_b = np.sum(a * b), np.sum(a * a), np.sum(b * b)
    factor_of_a = 1.0 - dot / (2 * of_a) if of_a else 1.0
    factor_of_b = 1.0 - dot / (2 * of_b) if of_b else 1.0
    return factor_of_a * a + factor_of_b * b


def adasum(vectors):
    """Of the ranks' vectors, in their order; their number is a power of two."""
    half = len(vectors) // 2
    return np.asarray(vectors[0], np.float64) if half == 0 else pair(adasum(vectors[:half]), adasum(vectors[half:]))
