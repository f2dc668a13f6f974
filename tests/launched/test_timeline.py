"""The timeline of a job: always JSON, every phase with its end, whatever becomes of the job (BR-12 and more)."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from children import LAUNCHER, Ended, bare_environment, finish, run, start

PROGRAM = Path(__file__).with_name("program_timeline.py")
LIMIT_S = 150


def load(path: Path) -> list[dict[str, Any]]:
    """Reads a file that may be growing; a second time when the system showed half of a write."""
    try:
        return json.loads(path.read_text(encoding="ascii"))
    except json.JSONDecodeError:
        time.sleep(0.03)
        return json.loads(path.read_text(encoding="ascii"))


def command(case: str, place: Path, ranks: int) -> list[object]:
    return [*LAUNCHER, "-np", ranks, "--", sys.executable, PROGRAM, case, place]


def job(case: str, place: Path, ranks: int = 2, **env: str) -> Ended:
    return run(command(case, place, ranks), timeout=LIMIT_S, env=bare_environment(**env))


class Phase(NamedTuple):
    """A pair of begin and end."""

    tensor: str
    name: str
    arguments: dict[str, Any]


class Timeline:
    """What a file holds; fails if phases do not nest or lack their end."""

    def __init__(self, path: Path) -> None:
        self.events = json.loads(path.read_text(encoding="ascii"))
        records = [event for event in self.events if event["ph"] == "M"]
        self.tensors = {e["pid"]: e["args"]["name"] for e in records if e["name"] == "process_name"}
        self.labels = {self.tensors[e["pid"]]: e["args"]["labels"] for e in records if e["name"] == "process_labels"}
        self.phases: list[Phase] = []
        self.ready: list[tuple[str, int]] = []
        under_way: dict[tuple[int, int], list[str]] = {}
        for event in self.events:
            lane = under_way.setdefault((event["pid"], event["tid"]), [])
            tensor = self.tensors[event["pid"]]
            if event["ph"] == "B":
                lane.append(event["name"])
            elif event["ph"] == "E":
                self.phases.append(Phase(tensor, lane.pop(), event.get("args", {})))
            elif event["ph"] == "X":
                self.ready.append((tensor, int(event["name"])))
        assert not any(under_way.values()), under_way
        times = [event["ts"] for event in self.events if "ts" in event]
        assert times == sorted(times)

    def counts(self) -> Counter[tuple[str, str]]:
        """How many phases there are, by tensor and name."""
        return Counter((phase.tensor, phase.name) for phase in self.phases)

    def marks(self) -> int:
        return sum(event["name"] == "CYCLE_START" for event in self.events if event["ph"] == "i")


def test_a_job_without_collectives_leaves_json(tmp_path: Path) -> None:
    ended = job("init", tmp_path / "t.json")
    assert ended.returncode == 0, ended
    timeline = Timeline(tmp_path / "t.json")
    assert timeline.phases == []
    assert timeline.events[0]["args"]["start_time_since_epoch_in_micros"] == pytest.approx(time.time() * 1e6, abs=2e8)


@pytest.mark.parametrize(("split", "way"), [("", "SHM"), ("1,1", "MPI")])
def test_every_collective_is_negotiated_and_executed(tmp_path: Path, split: str, way: str) -> None:
    ended = job("steps", tmp_path / "t.json", COMPAT_HVD_NODE_SPLIT=split)
    assert ended.returncode == 0, ended
    timeline = Timeline(tmp_path / "t.json")
    counts = timeline.counts()
    for tensor, name, activity in (("alpha", "ALLREDUCE", "ALLREDUCE"), ("beta", "BROADCAST", "BCAST")):
        for phase in (f"NEGOTIATE_{name}", name, "QUEUE", "MEMCPY_IN_FUSION_BUFFER", f"{way}_{activity}"):
            assert counts[tensor, phase] == 3, (tensor, phase, counts)
        assert Counter(timeline.ready)[tensor, 0] == Counter(timeline.ready)[tensor, 1] == 3
    assert {"dtype": "float32", "shape": "[5]"} in [phase.arguments for phase in timeline.phases]
    assert timeline.marks() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_a_file_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    ended = job("steps", tmp_path)
    assert ended.returncode == 0, ended
    assert ended.stderr.count("compat_hvd: warning: timeline") == 1
    assert f"'{tmp_path}'" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_calls_that_are_not_allowed(tmp_path: Path) -> None:
    ended = job("errors", tmp_path / "t.json", HOROVOD_TIMELINE="")
    assert ended.returncode == 0, ended
    assert ended.stdout.count("before init: Horovod has not been initialized; use hvd.init().") == 4
    assert ended.stdout.count("not set: Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage.") == 2
    assert ended.stdout.count("not set: nothing") == 2
    assert list(tmp_path.iterdir()) == []


def test_parts_of_a_run(tmp_path: Path) -> None:
    ended = job("dynamic", tmp_path)
    assert ended.returncode == 0, ended
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.json"]
    for number in range(2):
        timeline = Timeline(tmp_path / f"{number}.json")
        assert timeline.counts()[f"during{number}", "ALLREDUCE"] == 1
        assert not {"before", "after", f"during{1 - number}"} & set(timeline.tensors.values())
        assert (timeline.marks() > 0) == (number == 1)


def test_changing_the_file_while_collectives_are_in_flight_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    ended = job("switch", tmp_path)
    assert ended.returncode == 0, ended
    timelines = [Timeline(path) for path in tmp_path.iterdir()]
    assert len(timelines) > 10
    counts = sum((timeline.counts() for timeline in timelines), Counter())
    ready = sum((Counter(timeline.ready) for timeline in timelines), Counter())
    for number in range(5):
        tensor = f"tensor{number}"
        assert counts[tensor, "NEGOTIATE_ALLREDUCE"] == counts[tensor, "ALLREDUCE"] == 100
        assert ready[tensor, 0] == ready[tensor, 1] == 100


def test_errors_joins_sets_and_odd_names(tmp_path: Path) -> None:
    ended = job("mixed", tmp_path / "t.json", ranks=3, COMPAT_HVD_NODE_SPLIT="1,2")
    assert ended.returncode == 0, ended
    timeline = Timeline(tmp_path / "t.json")
    counts = timeline.counts()
    assert ended.stdout.count("got the error") == 3
    assert counts["bad", "NEGOTIATE_ALLREDUCE"] == 1
    assert counts["bad", "ALLREDUCE"] == 0
    (failed,) = (phase for phase in timeline.phases if phase.tensor == "bad")
    assert "Mismatched" in failed.arguments["error"]
    # The set 1 holds rank 0, which sees all of it; of the set 2 it sees the negotiation.
    assert counts["set1", "NEGOTIATE_ALLREDUCE"] == counts["set1", "ALLREDUCE"] == 1
    assert (counts["set2", "NEGOTIATE_ALLREDUCE"], counts["set2", "ALLREDUCE"]) == (1, 0)
    assert (timeline.labels["set1"], timeline.labels["set2"]) == ("process set 1", "process set 2")
    # Rank r makes 1 + 2r reductions and joins.
    assert (counts["uneven", "NEGOTIATE_ALLREDUCE"], counts["uneven", "ALLREDUCE"]) == (5, 1)
    assert Counter(timeline.ready)["uneven", 2] == 5
    assert sum(count for (_, phase), count in counts.items() if phase == "NEGOTIATE_JOIN") == 1
    assert any(tensor.startswith('quote " backslash \\ line\nend Grüße 🙂') for tensor in timeline.tensors.values())
    assert timeline.marks() >= 8


@pytest.mark.parametrize("case", ["raise", "raise_on_rank_0"])
def test_a_job_that_fails_leaves_a_whole_file(tmp_path: Path, case: str) -> None:
    ended = job(case, tmp_path / "t.json")
    assert ended.returncode != 0, ended
    timeline = Timeline(tmp_path / "t.json")
    assert timeline.counts()["alpha", "NEGOTIATE_ALLREDUCE"] == 3
    if case == "raise_on_rank_0":
        assert timeline.counts()["beta", "BROADCAST"] == 3


def test_the_file_is_json_while_the_job_runs_and_after_it_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    child = start(command("kill", path, 2))
    looks = 0
    while child.poll() is None:
        time.sleep(0.05)
        if path.exists() and path.stat().st_size:
            looks += len(load(path)) > 100
    ended = finish(child, timeout=LIMIT_S)
    assert ended.returncode != 0, ended
    assert looks > 3, ended
    events = json.loads(path.read_text())
    assert sum(event.get("name") == "NEGOTIATE_ALLREDUCE" for event in events) > 100
