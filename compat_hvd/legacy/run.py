"""Runs a script or a module as ``__main__`` in this process: arguments, search path, tracebacks and status as ever."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any, Callable, NoReturn


def script(path: str, arguments: list[str]) -> None:
    """Runs the file ``path`` as ``python path *arguments`` would."""
    absolute = os.path.join(os.getcwd(), path)
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        _refuse(f"can't open file {absolute!r}: [Errno {error.errno}] {error.strerror}", 2)
    name = absolute if sys.version_info >= (3, 9) else path
    main = ModuleType("__main__")
    main.__dict__.update(__file__=name, __cached__=None, __loader__=SourceFileLoader("__main__", name))
    sys.argv[:] = [path, *arguments]
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    _run(main, lambda: compile(source, name, "exec", dont_inherit=True))


def module(name: str, arguments: list[str]) -> None:
    """Runs the module ``name``, or the ``__main__`` of a package, as ``python -m name *arguments`` would."""
    sys.argv[:] = ["-m", *arguments]
    spec = _spec(name)
    loader: Any = spec.loader
    code = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
    if code is None:
        _refuse(f"No code object available for {name}", 1)
    main = ModuleType("__main__")
    main.__dict__.update(__file__=spec.origin, __cached__=spec.cached, __loader__=loader, __spec__=spec)
    main.__package__ = spec.parent
    sys.argv[0] = spec.origin or name
    _run(main, lambda: code)


def _spec(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        _refuse(f"Error while finding module specification for {name!r} ({type(error).__name__}: {error})", 1)
    if spec is None:
        _refuse(f"No module named {name}", 1)
    return spec


def _refuse(message: str, status: int) -> NoReturn:
    print(f"{sys.executable}: {message}", file=sys.stderr)
    sys.exit(status)


def _run(main: ModuleType, compiled: Callable[[], CodeType]) -> None:
    sys.modules["__main__"] = main
    try:
        exec(compiled(), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        _report(error)
        raise


def _report(error: BaseException) -> None:
    """Has the exception printed without the frames of this file, and then not again at the end of the interpreter.

    The exception itself goes on, because the interpreter ends by it: with status 1, or by SIGINT.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except BaseException:
        return  # the interpreter calls the hook once more and says what is wrong with it
    sys.excepthook = _print_nothing


def _print_nothing(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    pass
