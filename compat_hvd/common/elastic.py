"""Training that goes back to its last commit and goes on after an internal error, on a fixed set of ranks.

The interface is that of Horovod's elastic training. Ranks are neither added nor replaced here.
"""

from __future__ import annotations

import copy
import functools
import os
import pickle
from typing import Any, Callable, Iterable, TypeVar

from compat_hvd.common import config
from compat_hvd.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

Result = TypeVar("Result")

# An error that comes back so often before anything was committed will come back always.
RESTARTS_WITHOUT_COMMIT = 3


class State:
    """What training needs to go on from a commit. Subclasses say what ``save``, ``restore`` and ``sync`` mean.

    Args:
        bcast_object: a function that gives every rank the object of rank 0.
        get_rank: a function that returns this process's rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._commits = 0

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Adds functions that are called, in this order, whenever the ranks have been connected anew."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when the ranks have been connected anew: calls ``reset`` and the reset callbacks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Does nothing: the set of ranks is fixed."""

    def commit(self) -> None:
        """Saves the state, to which ``restore`` returns after an internal error.

        Where COMPAT_HVD_COMMIT_FILE is set, as compat-hvdrun --restarts does, rank 0 also writes it to that file, from
        which ``elastic.run`` begins when the whole job has been started again.
        """
        self.save()
        self._commits += 1
        self._write_commit()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Does nothing: with a fixed set of ranks there never is an update."""

    def save(self) -> None:
        """Keeps a copy of the state in the memory of this process."""
        raise NotImplementedError

    def restore(self) -> None:
        """Brings back what ``save`` kept last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives every rank the present state of rank 0, which thereby is saved; every rank calls it."""
        raise NotImplementedError

    def _write_commit(self) -> None:
        """Writes what was saved to the commit file, if there is to be one; for subclasses that can."""

    def _read_commit(self) -> None:
        """Restores what the commit file holds, if there is one; for subclasses that can."""

    def reset(self) -> None:
        """Called when the ranks have been connected anew, before the reset callbacks; for subclasses."""


class ObjectState(State):
    """Python objects as attributes.

    Args:
        bcast_object, get_rank: as of ``State``.
        kwargs: the attributes and their first values, which can be pickled and copied.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = copy.deepcopy(kwargs)
        self._set(kwargs)

    def save(self) -> None:
        """Copies the attributes; what is changed within them later does not reach the copy."""
        self._saved_state = copy.deepcopy({name: getattr(self, name) for name in self._saved_state})

    def restore(self) -> None:
        """Sets the attributes to copies of what was saved."""
        self._set(copy.deepcopy(self._saved_state))

    def sync(self) -> None:
        """Gives every rank the attributes of rank 0 and saves them."""
        if self._saved_state:
            self._set(self._bcast_object({name: getattr(self, name) for name in self._saved_state}))
            ObjectState.save(self)

    def _write_commit(self) -> None:
        path = config.get("COMPAT_HVD_COMMIT_FILE")
        if path is None or self._rank() != 0:
            return
        # A job that dies in the middle leaves the commit before.
        with open(f"{path}.new", "wb") as file:
            pickle.dump(self._saved(), file, pickle.HIGHEST_PROTOCOL)
        os.replace(f"{path}.new", path)

    def _read_commit(self) -> None:
        path = config.get("COMPAT_HVD_COMMIT_FILE")
        if path is None or self._rank() != 0 or not os.path.exists(path):
            return
        with open(path, "rb") as file:
            self._adopt(pickle.load(file))
        self.restore()

    def _saved(self) -> dict[str, Any]:
        """What ``save`` kept, in a form that can be pickled."""
        return {"attributes": self._saved_state}

    def _adopt(self, saved: dict[str, Any]) -> None:
        """The inverse of ``_saved``."""
        self._saved_state = {**self._saved_state, **saved["attributes"]}

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


def run_fn(func: Callable[..., Result], reset: Callable[[], Any]) -> Callable[..., Result]:
    """Wraps a training function ``func(state, …)`` so that it is called again after an internal error.

    Before each call the ranks' states are made equal. After a ``HorovodInternalError`` the last commit is restored and
    the ranks are connected anew; after a ``HostsUpdatedInterrupt`` the latter only.

    Args:
        func: takes a ``State`` as its first argument. It must not have collectives before it, which other ranks that
            come back would not meet.
        reset: connects the ranks anew; it is called on every rank and may raise HorovodInternalError.

    Returns:
        A function of the same arguments that returns what ``func`` does.

    Raises:
        HorovodInternalError: (the returned function) the ranks could not be connected anew, or the error came back
            several times without a commit in between.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Result:
        skip_sync = False
        fruitless, commits = 0, state._commits
        state._read_commit()
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError:
                fruitless = fruitless + 1 if state._commits == commits else 1
                if fruitless > RESTARTS_WITHOUT_COMMIT:
                    raise
                state.restore()
                skip_sync = False
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
            commits = state._commits
            reset()
            state.on_reset()

    return wrapper
