"""What each rank sends in a random program, and what it must receive: NumPy, without any collective."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from fuzz_programs import GATHERS

# Relative error of results that are not exact, by the dtype they are rounded to.
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
DISAGREEMENT = ("FailedPreconditionError",)
WRONG = ("InvalidArgumentError",)
ERRORS = {
    "foreign root": DISAGREEMENT + WRONG,
    "too few sent": WRONG,
    "too many sent": WRONG,
    "negative split": WRONG,
    "split too many": WRONG,
}


class Expected(NamedTuple):
    """Either values, with a tolerance for each, or the names of exceptions of which one must come."""

    values: list[np.ndarray]
    tolerances: list[float]
    errors: tuple[str, ...] = ()


def dtype_of(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def values(shape: list[int], dtype: str, key: int, rank: int, factors: bool = False) -> np.ndarray:
    """Small numbers that differ between neighbours, ranks and keys; ``factors`` makes them 1 and 2."""
    numbers = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape) * 7 + rank * 5 + key * 3
    if dtype == "bool":
        return numbers % 3 == 0
    if factors:
        return (numbers % 2 + 1).astype(dtype_of(dtype))
    numbers = numbers % 13
    if dtype.startswith("uint"):
        return numbers.astype(dtype_of(dtype))
    return ((numbers - 6) / (2 if "float" in dtype else 1)).astype(dtype_of(dtype))


def takes_part(operation: dict, rank: int) -> bool:
    spoil = operation["spoil"]
    return rank in operation["members"] or (spoil is not None and spoil["kind"] == "outsider" and spoil["rank"] == rank)


def at(operation: dict, time: int) -> dict:
    """The operation at this repetition: it may be good at first, so that its name is known when it is spoiled."""
    spoil = operation["spoil"]
    return {**operation, "spoil": None} if spoil and time < spoil["from"] else operation


def spoiled(operation: dict, rank: int) -> dict:
    """The operation as this rank runs it."""
    spoil = operation["spoil"]
    if spoil is None or (spoil["rank"] != rank and spoil["kind"] != "scalar"):
        return operation
    changed = copy.deepcopy(operation)
    kind, shape = spoil["kind"], changed["shapes"][-1]
    if kind == "dtype":
        changed["dtypes"][-1] = "int32" if operation["dtypes"][-1] != "int32" else "float32"
    elif kind == "dimensions":
        shape.append(1)
    elif kind == "shape":
        changed["shapes"][0][-1] += 1
    elif kind == "length":
        for part in ("dtypes", "shapes", "rows"):
            if part in changed:
                changed[part].append(changed[part][0])
    elif kind == "verb":
        changed["verb"], changed["root"] = "broadcast", operation["members"][0]
        changed["shapes"] = [list(one.shape) for one in inputs(operation, rank, 0)[:1]]
    elif kind == "root":
        changed["root"] = next(one for one in operation["members"] if one != operation["root"])
    elif kind == "foreign root":
        changed["root"] = max(operation["members"]) + 1
    elif kind == "op":
        changed["op"] = "Max" if operation["op"] != "Max" else "Sum"
    elif kind in ("prescale", "postscale"):
        changed[kind] *= 2
    elif kind not in ("scalar", "outsider"):
        changed["wrong splits"] = kind
    return changed


def inputs(operation: dict, rank: int, time: int) -> list[np.ndarray]:
    """The arrays that the rank hands over at this repetition, splits last."""
    verb, members = operation["verb"], operation["members"]
    if (operation["spoil"] or {}).get("kind") == "scalar":
        splits = [] if verb != "alltoall" or operation["equal"] else [np.ones(len(members), np.int32)]
        return [values([], operation["dtypes"][0], time, rank), *splits]
    place = members.index(rank) if rank in members else 0
    arrays = []
    for i, (shape, dtype) in enumerate(zip(operation["shapes"], operation["dtypes"])):
        if verb in GATHERS:
            shape = [operation["rows"][i][place], *shape]
        elif verb == "alltoall":
            shape = [sum(operation["splits"][place]), *shape]
        arrays.append(values(shape, dtype, time + 10 * i, rank, operation.get("op") == "Product"))
    if verb == "sparse_allreduce":
        arrays.append(np.arange(len(arrays[0]), dtype=np.int64) + 100 * rank)
    if verb == "alltoall":
        arrays += wrong_splits(operation, place)
    return arrays


def wrong_splits(operation: dict, place: int) -> list[np.ndarray]:
    splits, kind = list(operation["splits"][place]), operation.get("wrong splits")
    if kind is None:
        return [] if operation["equal"] else [np.array(splits, np.int32)]
    if kind == "too few sent":
        # The tensor has the rows of `splits`: without any, one more is sent than there is.
        splits[0] += -1 if splits[0] > 0 else 1
    elif kind == "too many sent":
        splits[-1] += 1
    elif kind == "negative split":
        splits[0] = -1
    else:
        splits.append(0)
    return [np.array(splits, np.int32)]


def expected(operation: dict, rank: int, time: int, eager: bool) -> Expected:
    spoil, verb, members = operation["spoil"], operation["verb"], operation["members"]
    if spoil:
        kind = spoil["kind"]
        if kind == "scalar":
            return Expected([], [], ("ValueError",) if eager else DISAGREEMENT)
        if kind != "outsider":
            return Expected([], [], ERRORS.get(kind, DISAGREEMENT))
        if rank == spoil["rank"]:
            return Expected([], [], WRONG)
    sent = [inputs(operation, member, time) for member in members]
    place = members.index(rank)
    if verb == "barrier":
        return Expected([], [])
    if verb == "broadcast":
        return exact(sent[members.index(operation["root"])])
    if verb in ("allgather", "grouped_allgather"):
        return exact([np.concatenate(parts) for parts in zip(*sent)])
    if verb == "sparse_allreduce":
        numbers, indices = (np.concatenate(parts) for parts in zip(*sent))
        divisor = len(members) if operation["op"] == "Average" else 1
        return Expected([numbers / np.asarray(divisor, numbers.dtype), indices], [1e-6, 0.0])
    if verb == "alltoall":
        starts = [np.cumsum([0, *splits]) for splits in operation["splits"]]
        parts = [one[0][start[place] : start[place + 1]] for one, start in zip(sent, starts)]
        received = [] if operation["equal"] else [np.array([len(part) for part in parts], np.int32)]
        return exact([np.concatenate(parts), *received])
    results, tolerances = [], []
    for arrays, dtype in zip(zip(*sent), operation["dtypes"]):
        result, tolerance = reduced(arrays, dtype, operation["op"], operation["prescale"], operation["postscale"])
        if "scatter" in verb:
            share, more = divmod(len(result), len(members))
            start = place * share + min(place, more)
            result = result[start : start + share + (place < more)]
        results.append(result)
        tolerances.append(tolerance)
    return Expected(results, tolerances)


def exact(results: list[np.ndarray]) -> Expected:
    return Expected(list(results), [0.0] * len(results))


def reduced(
    arrays: Any, dtype: str, op: str, prescale: float = 1.0, postscale: float = 1.0
) -> tuple[np.ndarray, float]:
    """The members' arrays reduced, and the relative tolerance. Integers are cut toward zero at each scaling."""
    integer = "float" not in dtype
    cut = np.trunc if integer else np.asarray
    scaled = [cut(np.asarray(array, np.float64) * prescale) for array in arrays]
    combine = {"Min": np.min, "Max": np.max, "Product": np.prod}.get(op, np.sum)
    result = combine(np.stack(scaled), axis=0)
    result = cut(result * postscale / (len(arrays) if op == "Average" else 1))
    # The numbers are small multiples of 1/2, and sums of these times powers of two have no rounding but the last.
    powers = {prescale, postscale} <= {0.5, 1.0, 2.0} and (op != "Average" or len(arrays) in (1, 2, 4))
    return result.astype(dtype_of(dtype)), 0.0 if integer or powers else TOLERANCE[dtype]


def difference(results: list[np.ndarray], right: Expected) -> str:
    """Says what is wrong with the results; empty if nothing is."""
    if len(results) != len(right.values):
        return f"{len(results)} results instead of {len(right.values)}"
    for i, (result, value, tolerance) in enumerate(zip(results, right.values, right.tolerances)):
        if result.dtype != value.dtype or result.shape != value.shape:
            return f"result {i} is {result.dtype}{result.shape} instead of {value.dtype}{value.shape}"
        near = result == value
        if tolerance:
            got, want = np.asarray(result, np.float64), np.asarray(value, np.float64)
            near = np.abs(got - want) <= tolerance * np.maximum(np.abs(want), 1.0)
        if not np.all(near):
            places = np.argwhere(~np.atleast_1d(near))
            first = tuple(places[0][: value.ndim])
            return f"result {i} is wrong at {len(places)} places, first at {first}: {result[first]}, not {value[first]}"
    return ""
