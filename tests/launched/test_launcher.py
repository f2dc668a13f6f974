"""What compat-hvdrun promises, with plain scripts: no TensorFlow, and nothing in the environment but PATH and HOME."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from children import LAUNCHER, bare_environment, finish, run, start

from compat_hvd import __version__
from compat_hvd.common import mpi

LIMIT_S = 60
VENDOR = mpi.find_library().vendor
HYDRA = VENDOR in ("mpich", "intelmpi")


@pytest.fixture
def script(tmp_path):
    """Writes a script whose ``rank`` is known and whose ``wait_for(name)`` and ``tell(name)`` put ranks in order."""

    def write(body):
        path = tmp_path / "script.py"
        head = f"""
            import os, signal, sys, time
            rank = int(os.environ["OMPI_COMM_WORLD_RANK"])

            def tell(name):
                open(os.path.join({str(tmp_path)!r}, name), "w").close()

            def wait_for(name):
                while not os.path.exists(os.path.join({str(tmp_path)!r}, name)):
                    time.sleep(0.01)
                time.sleep(0.2)  # for what was written before to be read before
        """
        path.write_text(textwrap.dedent(head) + textwrap.dedent(body))
        return path

    return write


def launch(ranks, *words, timeout=LIMIT_S, env=None, stdin=None):
    return run([*LAUNCHER, "-np", ranks, *words], timeout=timeout, env=env, stdin=stdin)


def processes_with(text):
    """Command lines of running processes that hold ``text``, without zombies."""
    listing = subprocess.run(["ps", "-ewwo", "stat=,args="], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [line for line in listing.splitlines() if text in line and not line.startswith("Z")]


def assert_nothing_left(text):
    deadline = time.monotonic() + 5
    while processes_with(text) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_with(text) == []


def wait_for_lines(child, count):
    return [child.stdout.readline() for _ in range(count)]


# What each rank is given.


def test_each_rank_knows_its_place_as_under_open_mpi(script):
    names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    ended = launch(3, script(f"print(*(os.environ[name] for name in {names}))"))
    assert ended.returncode == 0, ended
    assert sorted(ended.stdout.splitlines()) == [f"[{r}]<stdout>:{r} 3 {r} 3" for r in range(3)]
    assert ended.stderr == ""


def test_the_ranks_form_one_world(script):
    ended = launch(
        2,
        script(
            """
            from mpi4py import MPI
            assert MPI.COMM_WORLD.rank == rank
            print(MPI.COMM_WORLD.size, os.environ["COMPAT_HVD_LAUNCHER"])
            """
        ),
    )
    assert ended.returncode == 0, ended
    assert sorted(ended.stdout.splitlines()) == [f"[{r}]<stdout>:2 {VENDOR}" for r in range(2)]
    assert ended.stderr == ""


def test_one_rank_is_a_world_without_warnings(script):
    ended = launch(1, script("from mpi4py import MPI; print(MPI.COMM_WORLD.size)"))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[0]<stdout>:1\n", ""), ended


def test_the_environment_is_passed_on(script):
    value = "a 'b' \"c\" $HOME\n;=é"
    ended = launch(2, script("print(ascii(os.environ['GIVEN']))"), env=bare_environment(GIVEN=value))
    assert sorted(ended.stdout.splitlines()) == [f"[{r}]<stdout>:{value!a}" for r in range(2)], ended


def test_traces_of_an_outer_launcher_are_not_passed_on(script):
    outer = {
        "PMI_RANK": "3",
        "PMI_SIZE": "7",
        "PMI_FD": "99",
        "PMIX_RANK": "3",
        "PMIX_NAMESPACE": "outer",
        "PRTE_LAUNCHED": "1",
        "OMPI_COMM_WORLD_SIZE": "7",
        "COMPAT_HVD_LAUNCHER": "other",
    }
    body = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
    ended = launch(2, script(body), env=bare_environment(**outer))
    assert (ended.returncode, sorted(ended.stdout.splitlines())) == (0, [f"[{r}]<stdout>:2" for r in range(2)]), ended


def test_the_first_line_arrives_before_the_script_ends(script, tmp_path):
    child = start([*LAUNCHER, "-np", 2, script("print('first'); wait_for('seen'); print('last')")])
    killer = _kill_later(child)
    assert sorted(wait_for_lines(child, 2)) == [f"[{r}]<stdout>:first\n" for r in range(2)]
    assert child.poll() is None
    killer.cancel()
    (tmp_path / "seen").touch()
    assert finish(child, timeout=LIMIT_S).returncode == 0


def _kill_later(child):
    """Lets a test that waits for a line fail instead of waiting for ever."""
    from threading import Timer

    timer = Timer(LIMIT_S, os.killpg, (child.pid, signal.SIGKILL))
    timer.daemon = True
    timer.start()
    return timer


def test_unbuffered_output_is_left_to_who_has_set_it(script):
    body = "print(os.environ['PYTHONUNBUFFERED'] or 'empty')"
    assert launch(1, script(body)).stdout == "[0]<stdout>:1\n"
    assert launch(1, script(body), env=bare_environment(PYTHONUNBUFFERED="")).stdout == "[0]<stdout>:empty\n"


def test_rank_0_reads_the_input_and_the_others_nothing(script):
    # The mpiexec of Open MPI 5 never lets its rank 0 see the end of the input.
    ends = not mpi.find_library().version.startswith("5.") or VENDOR != "openmpi"
    read = "sys.stdin.read()" if ends else "sys.stdin.readline() + sys.stdin.readline()"
    body = f"print(ascii({read} if rank == 0 else sys.stdin.read()))"
    ended = launch(2, script(body), stdin="one\ntwo\n")
    assert sorted(ended.stdout.splitlines()) == ["[0]<stdout>:'one\\ntwo\\n'", "[1]<stdout>:''"], ended


# What is run.


def test_arguments_arrive_as_they_were_given(script):
    words = ["--np", "-x", "", "two words", "it's", "$HOME", ":", "a\nb", "%r", "*", "--"]
    ended = launch(1, "--", sys.executable, script("print(ascii(sys.argv[1:]))"), *words)
    assert ended.stdout == f"[0]<stdout>:{words!a}\n", ended


def test_a_program_that_is_no_script_runs_as_it_is():
    assert launch(1, "/bin/echo", "hello").stdout == "[0]<stdout>:hello\n"


def test_a_script_of_the_working_directory_runs_even_if_it_is_executable(script):
    path = script("print(sys.executable)")
    path.chmod(0o755)
    child = subprocess.run(
        [*LAUNCHER, "-np", "1", path.name],
        cwd=path.parent,
        env=bare_environment(),
        stdout=subprocess.PIPE,
        timeout=LIMIT_S,
    )
    assert child.stdout.decode() == f"[0]<stdout>:{sys.executable}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-np", "2", "no-such-program"], "cannot run 'no-such-program'"),
        (["-np", "2", "missing.py"], "cannot run 'missing.py'"),
        (["-np", "2"], "what to run is missing"),
        (["-np", "0", "true"], "-np"),
        (["-np", "two", "true"], "'two'"),
        (["true"], "-np"),
        (["-np", "2", "--nonsense", "true"], "--nonsense"),
        (["-np", "2", "--hosts", "a:b", "true"], "host:slots"),
        (["-np", "2", "--mpiexec", "/no/mpiexec", "true"], "/no/mpiexec"),
        (["-np", "2", "--output-filename", "/dev/null/x", "true"], "/dev/null/x"),
    ],
)
def test_wrong_use_is_status_2_and_says_what(words, message):
    ended = run([*LAUNCHER, *words], timeout=LIMIT_S)
    assert ended.returncode == 2, ended
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("raise ImportError", "which is not installed: pip install"),
        ("__version__ = '3.0.3'", "found 3.0.3"),
        (
            "__version__ = '4.1.0'\nfrom types import SimpleNamespace\nrc = SimpleNamespace()",
            "could not load an MPI library",
        ),
    ],
    ids=["missing", "too old", "without MPI"],
)
def test_without_mpi_the_status_is_2_and_the_cure_is_named(tmp_path, module, message):
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").write_text(module)
    env = bare_environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    ended = launch(2, "true", env=env)
    assert ended.returncode == 2, ended
    assert message in ended.stderr
    assert "pip install" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_lowest_mpi4py_is_the_one_that_is_required():
    setup = (mpi.__file__.rpartition("/compat_hvd/")[0]) + "/setup.py"
    with open(setup, encoding="utf-8") as file:
        assert f"mpi4py>={'.'.join(map(str, mpi.LOWEST_MPI4PY))}" in file.read()


def test_an_mpiexec_of_another_mpi_on_path_is_passed_over(script, tmp_path):
    for name in ("mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi", "mpirun"):
        other = tmp_path / "bin" / name
        other.parent.mkdir(exist_ok=True)
        other.write_text("#!/bin/sh\necho 'mpiexec of nobody 1.0'\nexit 9\n")
        other.chmod(0o755)
    ended = launch(1, script("print(1)"), env=bare_environment(PATH=f"{other.parent}:/usr/bin:/bin"))
    assert ended.returncode == 0, ended
    ended = launch(1, "--mpiexec", other, script("print(1)"))
    assert ended.returncode == 9, ended


def test_mpiexec_may_be_named_and_given_more_options(script):
    ended = launch(2, "--verbose", "--mpi-args=-wdir /usr", script("print(os.getcwd())"))
    assert ended.returncode == 0, ended
    assert sorted(ended.stdout.splitlines()) == [f"[{r}]<stdout>:/usr" for r in range(2)]
    assert str(mpi.find_library()) in ended.stderr
    named = re.search(r"^(\S*/bin/mpi\S+) ", ended.stderr, re.MULTILINE)
    assert named is not None, ended
    ended = launch(1, "--mpiexec", named.group(1), script("print(1)"))
    assert ended.stdout == "[0]<stdout>:1\n", ended


def test_hosts_are_passed_on(script):
    ended = launch(2, "-H", "localhost:2", script("print(1)"))
    assert sorted(ended.stdout.splitlines()) == [f"[{r}]<stdout>:1" for r in range(2)], ended


def test_version():
    assert run([*LAUNCHER, "--version"], timeout=LIMIT_S).stdout == f"compat_hvd {__version__}\n"


# What is printed.


def test_lines_are_whole_whatever_the_pieces(script):
    ended = launch(
        2,
        script(
            """
            if rank == 0:
                sys.stdout.write("zero begins, "); sys.stdout.flush(); tell("a"); wait_for("b")
                sys.stdout.write("zero ends\\n\\nrest of zero"); sys.stderr.write("error of zero\\n")
            else:
                wait_for("a"); sys.stdout.write("one begins, "); sys.stdout.flush(); tell("b"); wait_for("c")
                sys.stdout.write("one ends")
            tell("c")
            """
        ),
    )
    assert ended.returncode == 0, ended
    assert sorted(ended.stdout.splitlines()) == [
        "[0]<stdout>:",
        "[0]<stdout>:rest of zero",
        "[0]<stdout>:zero begins, zero ends",
        "[1]<stdout>:one begins, one ends",
    ]
    assert ended.stderr == "[0]<stderr>:error of zero\n"


def test_much_output_is_complete_and_in_order(script):
    ended = launch(2, script("for i in range(20000): print(f'{rank}-{i}', 'x' * (i % 100))"))
    assert ended.returncode == 0
    for rank in range(2):
        mine = [line.partition(":")[2] for line in ended.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert mine == [f"{rank}-{i} {'x' * (i % 100)}" for i in range(20000)]


@pytest.mark.parametrize("tag", [[], ["--no-tag"]])
def test_each_rank_has_files_of_its_own(script, tmp_path, tag):
    body = "os.write(1, b'out %d\\xff\\r' % rank); os.write(2, b'error %d' % rank)"
    ended = launch(11, *tag, "--output-filename", tmp_path / "logs", script(body))
    assert ended.returncode == 0, ended
    for rank in range(11):
        folder = tmp_path / "logs" / f"rank.{rank:02}"
        assert (folder / "stdout").read_bytes() == b"out %d\xff\r" % rank
        assert (folder / "stderr").read_bytes() == b"error %d" % rank


def test_without_tags_output_comes_as_it_is_written(script, tmp_path):
    child = start(
        [*LAUNCHER, "-np", 1, "--no-tag", script("sys.stdout.write('prompt <'); sys.stdout.flush(); wait_for('seen')")]
    )
    killer = _kill_later(child)
    if VENDOR != "openmpi":
        assert child.stdout.read(7) == "prompt "
    killer.cancel()
    (tmp_path / "seen").touch()
    ended = finish(child, timeout=LIMIT_S)
    assert ended.stdout.endswith("<"), ended


def test_a_reader_that_leaves_ends_the_job(script):
    path = script("while True: print('line')")
    words = " ".join(shlex.quote(str(word)) for word in (*LAUNCHER, "-np", 2, path))
    ended = run(["bash", "-c", f"set -o pipefail; {words} | head -n 2"], timeout=LIMIT_S)
    assert ended.returncode == 128 + signal.SIGPIPE, ended
    assert len(ended.stdout.splitlines()) == 2
    assert "BrokenPipe" not in ended.stderr
    assert_nothing_left(str(path))


# How it ends.


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("sys.exit(3 if rank == 1 else 0)", 3),
        ("wait_for('one') if rank == 0 else None; tell('one'); sys.exit(2 - rank)", 1),
        ("os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else None", 128 + signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSEGV) if rank == 0 else None", 128 + signal.SIGSEGV),
        ("raise KeyError('wrong') if rank == 1 else None", 1),
        ("from mpi4py import MPI; MPI.COMM_WORLD.Abort(7) if rank == 0 else time.sleep(60)", 7),
        ("from mpi4py import MPI; os._exit(5) if rank == 1 else time.sleep(60)", 5),
        ("sys.exit(3) if rank == 0 else time.sleep(60)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else time.sleep(60)", 128 + signal.SIGKILL),
        ("sys.exit(4) if rank == 0 else None; from mpi4py import MPI; MPI.COMM_WORLD.barrier()", 4),
    ],
)
def test_the_first_status_other_than_0_is_passed_on_and_ends_the_job(script, body, status):
    path = script(body)
    ended = launch(2, path, timeout=30)
    assert ended.returncode == status, ended
    assert_nothing_left(str(path))


def test_a_rank_that_vanishes_with_status_0_is_a_failure(script):
    path = script("from mpi4py import MPI; os._exit(0) if rank == 1 else time.sleep(60)")
    ended = launch(2, path, timeout=30)
    if VENDOR == "mpich":
        assert ended.returncode == 1, ended
        assert "rank 1 left in the middle of the job with status 0; mpiexec has killed rank 0" in ended.stderr
    else:
        assert ended.returncode != 0, ended
    assert_nothing_left(str(path))


def test_what_a_failed_rank_has_started_is_ended_too(script):
    path = script(
        """
        import subprocess
        quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        subprocess.Popen(["sleep", "62.5"], start_new_session=True, **quiet)
        sys.exit(rank)
        """
    )
    assert launch(2, path).returncode == 1
    assert_nothing_left("sleep 62.5")


def test_nothing_outlives_a_launcher_that_is_killed(script):
    path = script("print('up'); time.sleep(60)")
    child = start([*LAUNCHER, "-np", 2, path])
    wait_for_lines(child, 2)
    child.kill()
    finish(child, timeout=30)
    assert_nothing_left(str(path))


def test_the_rank_that_failed_is_named(script):
    ended = launch(2, script("sys.exit(3) if rank == 1 else None"))
    who = "rank 1" if HYDRA else "the job"
    assert f"compat-hvdrun: {who} ended with status 3\n" in ended.stderr


def test_staggered_ends_are_a_success(script):
    ended = launch(3, script("from mpi4py import MPI; time.sleep(0.7 * rank)"))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", ""), ended


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_job_and_its_status_tells(script, number):
    path = script("print('up'); time.sleep(60)")
    child = start([*LAUNCHER, "-np", 2, path])
    wait_for_lines(child, 2)
    child.send_signal(number)
    ended = finish(child, timeout=30)
    assert ended.returncode == 128 + number, ended
    assert_nothing_left(str(path))


@pytest.mark.skipif(not HYDRA, reason="Open MPI's mpiexec kills the ranks instead of passing a signal on")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ranks_that_end_well_after_a_signal_are_a_success(script, number):
    path = script(
        f"""
        def leave(number, frame):
            time.sleep(1)
            print("saved")
            sys.exit(0)

        signal.signal({int(number)}, leave)
        print("up")
        time.sleep(60)
        """
    )
    child = start([*LAUNCHER, "-np", 2, path])
    wait_for_lines(child, 2)
    child.send_signal(number)
    ended = finish(child, timeout=30)
    assert ended.returncode == 0, ended
    assert sorted(re.findall(r"\[\d\]<stdout>:saved", ended.stdout)) == [f"[{r}]<stdout>:saved" for r in range(2)]


@pytest.mark.parametrize("second", [False, True], ids=["one signal", "two signals"])
def test_ranks_that_ignore_signals_are_killed(script, second):
    path = script(
        """
        import subprocess
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        subprocess.Popen(["sleep", "61.5"], start_new_session=True)
        print("up")
        while True: time.sleep(1)
        """
    )
    grace = 60 if second else 2
    patient = f"import sys; from compat_hvd.launcher import job, main; job.SIGNAL_GRACE_S = {grace}; sys.exit(main())"
    child = start([sys.executable, "-c", patient, "-np", 2, path])
    wait_for_lines(child, 2)
    child.send_signal(signal.SIGINT)
    if second:
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
    ended = finish(child, timeout=30)
    assert ended.returncode == 128 + signal.SIGINT, ended
    assert_nothing_left(str(path))
    assert_nothing_left("sleep 61.5")
