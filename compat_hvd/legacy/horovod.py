"""``import compat_hvd.legacy.horovod`` makes ``import horovod.tensorflow as hvd`` mean compat_hvd in this process.

Modules that Horovod and compat_hvd both have are one object under two names: ``horovod.tensorflow is
compat_hvd.tensorflow``, and so is everything beneath. What only Horovod has (its ``__version__``, a few functions of
``horovod.runner``) is in the folder ``horovod_package``. Anything else is an ImportError that says what there is.

Raises:
    ImportError: the real Horovod has been imported in this process already.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Sequence

from compat_hvd import __version__

_FOLDER = Path(__file__).with_name("horovod_package")
_SHARED = ("common", "tensorflow", "keras", "_keras")
"""Packages that are the same in both; their submodules are whatever compat_hvd has."""


class _SameModule(Loader):
    """Puts an existing module under a second name, without touching its own ``__name__`` and ``__spec__``."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def exec_module(self, module: ModuleType) -> None:
        """Replaces the fresh ``module`` by ours; the import system takes what it finds in ``sys.modules``."""
        sys.modules[module.__name__] = importlib.import_module(self._ours)


class _Finder(MetaPathFinder):
    """Answers for ``horovod`` and all beneath it, and for nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns where a module of Horovod's is found.

        Raises:
            ModuleNotFoundError: there is no such module here.
        """
        if fullname == "horovod":
            return importlib.util.spec_from_file_location(fullname, _FOLDER / "__init__.py")
        if not fullname.startswith("horovod."):
            return None
        spec = _shared(fullname) or PathFinder.find_spec(fullname, path)
        if spec is None:
            # Without name=: the import system swallows the exception, and the message, if `from horovod import …`
            # meets one that names what it looked for.
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: 'horovod' is compat_hvd {__version__} in this process, which has "
                f"{_available()}"
            )
        return spec


def _shared(fullname: str) -> ModuleSpec | None:
    if fullname.split(".")[1] not in _SHARED:
        return None
    ours = f"compat_hvd{fullname[len('horovod') :]}"
    return ModuleSpec(fullname, _SameModule(ours), origin=ours) if importlib.util.find_spec(ours) else None


def _available() -> str:
    found = [name for name in _SHARED if importlib.util.find_spec(f"compat_hvd.{name}")]
    return ", ".join(f"horovod.{name}" for name in [*found, "runner"])


def _install() -> None:
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    loaded = sys.modules.get("horovod")
    if loaded is not None:
        raise ImportError(
            f"the Horovod in {getattr(loaded, '__file__', '?')} has been imported already; put "
            "'import compat_hvd.legacy.horovod' before the first import of horovod"
        )
    real = PathFinder.find_spec("horovod")
    if real is not None and real.origin is not None:
        folder = Path(real.origin).parent
        print(f"compat_hvd: 'horovod' is compat_hvd {__version__}, not the Horovod in {folder}", file=sys.stderr)
    sys.meta_path.insert(0, _Finder())


_install()
