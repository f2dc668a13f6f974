"""The name `horovod`, and `python -m compat_hvd.legacy`: in children that start with an empty environment."""

from __future__ import annotations

import sys
import textwrap

import pytest
from children import LAUNCHER, ROOT, bare_environment, run

LIMIT_S = 120
ALIAS = (sys.executable, "-m", "compat_hvd.legacy")


@pytest.fixture
def write(tmp_path):
    """Writes a file into a fresh folder and returns its path."""

    def write(body, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(body))
        return path

    return write


@pytest.fixture
def real_horovod(write):
    """A folder with a package that is called horovod."""
    write("__version__ = '0.1.2'\n", "site/horovod/__init__.py")
    return write("", "site/horovod/tensorflow.py").parent.parent


def python(*words, **environment):
    return run([sys.executable, *words], timeout=LIMIT_S, env=bare_environment(TF_CPP_MIN_LOG_LEVEL="3", **environment))


def legacy(*words, **environment):
    return python("-m", "compat_hvd.legacy", *words, **environment)


def succeeded(ended):
    assert ended.returncode == 0, ended
    return ended.stdout


# Every module of ours below a package that Horovod has too is the same under Horovod's name, imported or as attribute.
SAME_MODULES = """
    import importlib, pkgutil, sys
    import compat_hvd.legacy.horovod
    import horovod, horovod.common, horovod.tensorflow as hvd
    import compat_hvd.common, compat_hvd.tensorflow as ours
    from horovod import tensorflow
    from horovod.tensorflow.compression import Compression
    from horovod.tensorflow import mpi_ops

    assert hvd is ours and tensorflow is ours and horovod.tensorflow is ours
    assert ours.__name__ == ours.__spec__.name == "compat_hvd.tensorflow"
    assert mpi_ops is ours.mpi_ops and Compression is ours.Compression
    for package in (compat_hvd.common, ours):
        for _, name, _ in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            theirs = "horovod" + name[len("compat_hvd"):]
            same = importlib.import_module(theirs)
            assert same is importlib.import_module(name) is sys.modules[theirs], name
            value = horovod
            for part in theirs.split(".")[1:]:
                value = getattr(value, part)
            assert value is same, name
            print(theirs)
"""


def test_modules_that_both_have_are_the_same_objects(write):
    names = succeeded(python(write(SAME_MODULES))).split()
    assert {"horovod.tensorflow.mpi_ops", "horovod.tensorflow.functions", "horovod.common.util"} <= set(names)


def test_the_version_is_one_that_scripts_accept(write):
    script = write("import horovod; print(*map(int, horovod.__version__.split('.')), horovod.__name__)")
    assert succeeded(legacy(script)) == "0 28 1 horovod\n"


@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        *[(f"import horovod.{name}", f"horovod.{name}") for name in ("torch", "mxnet", "spark.run", "ray")],
        ("from horovod import torch", "horovod.torch"),
        ("import horovod.launcher", "horovod.launcher"),
        ("import horovod.runner.launch", "horovod.runner.launch"),
        ("import horovod.common.nothing", "horovod.common.nothing"),
    ],
)
def test_what_is_missing_is_an_import_error_that_says_what_there_is(write, statement, missing):
    script = write(f"try:\n    {statement}\nexcept ModuleNotFoundError as error:\n    print(error)\n")
    message = succeeded(legacy(script))
    assert message.startswith(f"No module named '{'.'.join(missing.split('.')[:2])}")
    assert "horovod.tensorflow" in message
    assert "horovod.runner" in message


def test_without_the_alias_the_real_horovod_is_found(real_horovod, write):
    script = write("import compat_hvd, horovod; print(horovod.__version__)")
    assert succeeded(python(script, PYTHONPATH=f"{ROOT}:{real_horovod}")) == "0.1.2\n"


def test_the_alias_wins_over_a_real_horovod_and_says_so(real_horovod, write):
    script = write("import horovod, horovod.common; print(horovod.__version__, horovod.common.__name__)")
    ended = legacy(script, PYTHONPATH=f"{real_horovod}:{ROOT}")
    assert succeeded(ended) == "0.28.1 compat_hvd.common\n"
    assert len(ended.stderr.splitlines()) == 1
    assert "'horovod' is compat_hvd" in ended.stderr
    assert str(real_horovod) in ended.stderr


def test_alone_the_alias_says_nothing(write):
    assert legacy(write("import horovod")).stderr == ""


def test_the_alias_refuses_to_replace_a_real_horovod_in_use(real_horovod, write):
    script = write("import horovod\nimport compat_hvd.legacy.horovod")
    ended = python(script, PYTHONPATH=f"{real_horovod}:{ROOT}")
    assert ended.returncode == 1
    assert f"ImportError: the Horovod in {real_horovod}" in ended.stderr


def test_children_of_the_script_do_not_inherit_the_alias(write):
    script = write("""
        import subprocess, sys
        import horovod
        print(subprocess.run([sys.executable, "-c", "import horovod"], stderr=subprocess.PIPE).stderr.decode())
    """)
    assert "No module named 'horovod'\n" in succeeded(legacy(script))


# What a script can see of how it was started; the first argument chooses its end.
BEHAVIOUR = """
    import os, pickle, sys, threading

    class Local:
        pass

    def fail():
        raise ValueError("deep")

    def late():
        threading.main_thread().join()
        print("late", isinstance(pickle.loads(pickle.dumps(Local())), Local))

    visible = [__name__, __file__, __package__, __cached__ and os.path.basename(__cached__), __spec__ and __spec__.name]
    print(sys.argv, sys.path, visible, __doc__, type(__loader__).__name__, sys.modules["__main__"].fail is fail)
    print(eval("1 if True else 0"), "annotations" in globals())
    threading.Thread(target=late).start()
    end = sys.argv[1]
    if end == "status":
        sys.exit(7)
    elif end == "text":
        sys.exit("bye")
    elif end == "interrupt":
        raise KeyboardInterrupt
    elif end == "chain":
        try:
            fail()
        except ValueError as error:
            raise KeyError("outer") from error
    elif end == "hook":
        sys.excepthook = lambda kind, value, trace: print("hook", kind, trace.tb_frame.f_code.co_name, trace.tb_lineno)
        fail()
"""


def outcome(words, folder):
    command = ["bash", "-c", 'cd "$0" && exec "$@"', folder, sys.executable, *words]
    return run(command, timeout=LIMIT_S, env=bare_environment())


@pytest.mark.parametrize("end", ["well", "status", "text", "interrupt", "chain", "hook"])
def test_a_script_cannot_tell_the_difference(write, end):
    folder = write(BEHAVIOUR).parent
    for path in ("script.py", "./script.py", folder / "script.py", "../" + folder.name + "/script.py"):
        plain = outcome([path, end, "--flag"], folder)
        assert outcome(["-m", "compat_hvd.legacy", path, end, "--flag"], folder) == plain, plain


@pytest.mark.parametrize("end", ["well", "status", "interrupt"])
@pytest.mark.parametrize("name", ["module", "package"])
def test_a_module_cannot_tell_the_difference(write, name, end):
    folder = write(BEHAVIOUR, "module.py").parent
    write("", "package/__init__.py")
    write(BEHAVIOUR, "package/__main__.py")
    plain = outcome(["-m", name, end, "--flag"], folder)
    under = outcome(["-m", "compat_hvd.legacy", "-m", name, end, "--flag"], folder)
    # `python -m` itself shows the frames of runpy.
    runpys = ("runpy", "_run_code(", "exec(code, run_globals)")
    lines = [line for line in plain.stderr.splitlines() if not any(text in line for text in runpys)]
    assert (under.returncode, under.stdout, under.stderr.splitlines()) == (plain.returncode, plain.stdout, lines), plain


@pytest.mark.parametrize(
    "words", [["missing.py"], ["-m", "missing"], ["-m", "missing.submodule"], ["-m", "json"], ["broken.py"]]
)
def test_what_cannot_run_is_refused_as_python_does(write, words):
    folder = write("x = 1\ny =\n", "broken.py").parent
    plain = outcome(words, folder)
    under = outcome(["-m", "compat_hvd.legacy", *words], folder)
    assert under.returncode == plain.returncode != 0
    assert under.stderr
    assert plain.stderr.startswith(under.stderr.rstrip("\n"))


@pytest.mark.parametrize("words", [[], ["-x"], ["-m"]])
def test_a_wrong_command_line_gets_the_usage(words):
    ended = legacy(*words)
    assert ended.returncode == 2
    assert ended.stderr.startswith("usage: python -m compat_hvd.legacy")


def test_two_ranks_train_with_horovods_name(write):
    script = write("""
        import tensorflow.compat.v1 as tf
        import horovod.tensorflow as hvd
        from horovod.runner.common.util.env import get_env_rank_and_size

        tf.disable_v2_behavior()
        hvd.init()
        assert (hvd.rank(), hvd.size()) == get_env_rank_and_size()
        x = tf.placeholder(tf.float32)
        w = tf.get_variable("w", initializer=0.0)
        step = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(1.0)).minimize(-w * x)
        with tf.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
            session.run(step, {x: 2.0 * hvd.rank()})
            print("w is", session.run(w))
    """)
    ended = run([*LAUNCHER, "-np", "2", "--no-tag", "--", *ALIAS, script], timeout=LIMIT_S)
    assert succeeded(ended) == "w is 1.0\n" * 2


def test_an_uncaught_exception_ends_the_job_with_its_traceback_once(write):
    script = write("""
        import numpy as np
        import horovod.tensorflow as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise RuntimeError("rank 1 is done for")
        hvd.allreduce(np.float32(1), name="x")
    """)
    ended = run([*LAUNCHER, "-np", "2", "--no-tag", "--", *ALIAS, script], timeout=LIMIT_S)
    assert ended.returncode == 1, ended
    assert ended.stderr.count("RuntimeError: rank 1 is done for") == 1 + ended.stderr.count("uncaught exception (Runti")
    assert "compat_hvd/legacy/run.py" not in ended.stderr
