"""The processor: the time of others is what all processes spent less what ours did, and ours include all below them."""

import os
import subprocess
import sys

import pytest

from longca_bench.measuring import processor
from longca_bench.measuring.processor import (
    Reading,
    allowed_cores,
    governors,
    kept_from_us,
    process_tree,
    read_processor,
)

#: Works for 0.3 s of its own time.
WORK = "import time\nwhile time.process_time() < 0.3: pass"


class Proc:
    """A /proc and a /sys/devices/system/cpu of a test, with two cores, of which this process may use one."""

    def __init__(self, root, monkeypatch):
        self.root = root
        monkeypatch.setattr(processor, "PROC", root)
        monkeypatch.setattr(processor, "CPUS", root)
        monkeypatch.setattr(processor, "GROUP", root / "cpu.stat")
        monkeypatch.setattr(processor, "allowed_cores", lambda: {1})
        monkeypatch.setattr(processor, "_parents", {})

    def cores(self, *rows):
        self.root.joinpath("stat").write_text(
            "".join(f"cpu{name} {' '.join(map(str, row))}\n" for name, row in zip(("", 0, 1), rows, strict=True))
            + "intr 5\n"
        )

    def process(self, pid, parent, *ticks):
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        folder.joinpath("stat").write_text(f"{pid} (a ) name) R {parent} {'0 ' * 9}{' '.join(map(str, ticks))} 20 0\n")


@pytest.fixture
def proc(tmp_path, monkeypatch):
    return Proc(tmp_path, monkeypatch)


def test_others_are_all_that_work_on_the_allowed_cores_less_our_own(proc):
    tick = os.sysconf("SC_CLK_TCK")
    proc.cores([9] * 10, [9] * 10, [10, 1, 2, 1000, 50, 3, 4, 5, 0, 0])
    proc.process(20, 1, 4, 3, 2, 1)
    proc.process(21, 20, 5, 0, 0, 0)  # a child
    proc.process(30, 1, 99, 99, 0, 0)  # somebody else
    found = read_processor([20])
    assert found.worked == pytest.approx(25 / tick)
    assert found.own == pytest.approx(15 / tick)
    begin, end = Reading(10.0, 5.0, 3.0, None), Reading(12.0, 9.0, 4.0, None)
    assert end.other_cores(begin) == pytest.approx(1.5)
    assert Reading(12.0, 5.5, 4.0, None).other_cores(begin) == 0.0


def test_others_and_a_quota_keep_cores_from_us(proc):
    tick, none = os.sysconf("SC_CLK_TCK"), [0] * 10
    proc.cores(none, none, [10, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    proc.process(20, 1, 1, 0, 0, 0)
    kept = kept_from_us([20])
    proc.cores(none, none, [60, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    proc.process(20, 1, 31, 0, 0, 0)
    assert kept() == pytest.approx(20 / tick)
    proc.root.joinpath("cpu.stat").write_text("usage_usec 9\nthrottled_usec 1500000\n")
    assert kept() == pytest.approx(20 / tick + 1.5)
    proc.cores(none, none, none)
    assert kept() is None


def test_a_system_that_counts_nothing_is_unknown_and_not_quiet(proc):
    proc.cores([0] * 10, [0] * 10, [0] * 10)
    unknown = read_processor([1])
    assert unknown.worked is None
    assert Reading(1.0, 2.0, 0.0, None).other_cores(unknown) is None
    proc.root.joinpath("stat").unlink()
    assert read_processor([1]).worked is None


def test_descendants_of_descendants_are_ours_and_ended_ones_are_forgotten(proc):
    for pid, parent in ((2, 1), (3, 2), (4, 3), (5, 1)):
        proc.process(pid, parent, 0, 0, 0, 0)
    assert process_tree([2]) == {2, 3, 4}
    proc.process(6, 4, 0, 0, 0, 0)
    proc.root.joinpath("3/stat").unlink()
    proc.root.joinpath("3").rmdir()
    proc.process(5, 5, 0, 0, 0, 0)
    assert process_tree([4, 5]) == {4, 5, 6}
    assert 3 not in processor._parents


def test_what_a_lost_process_left_is_ours_with_its_new_parent(proc):
    for pid, parent in ((2, 1), (3, 2), (4, 3)):
        proc.process(pid, parent, 0, 0, 0, 0)
    assert process_tree([2]) == {2, 3, 4}
    proc.root.joinpath("3/stat").unlink()
    proc.root.joinpath("3").rmdir()
    proc.process(4, 2, 0, 0, 0, 0)
    assert process_tree([2]) == {2, 4}


#: The checks of a process that has no children but its own: a test's process has those of other tests.
BELOW = f"""
import os, subprocess, sys, time
from longca_bench.measuring.processor import computed_below
me = [os.getpid()]
{WORK}
assert computed_below(me) == 0.0, "its own time"
program = {WORK!r} + "\\nprint(flush=True)\\ninput()"
with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1) as child:
    child.stdout.readline()
    running = computed_below(me)
    child.communicate(b"\\n")
assert running >= 0.3
assert computed_below(me) >= running - 0.02, "an ended child's"
"""


def test_time_below_a_process_is_that_of_running_and_ended_children_and_not_its_own():
    ran = subprocess.run([sys.executable, "-c", BELOW], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_frequency_and_governor_are_those_of_the_allowed_cores(proc):
    assert governors() == set()
    for core, frequency, governor in ((0, 800000, "powersave"), (1, 2600000, "performance")):
        folder = proc.root / f"cpu{core}/cpufreq"
        folder.mkdir(parents=True)
        folder.joinpath("scaling_cur_freq").write_text(f"{frequency}\n")
        folder.joinpath("scaling_governor").write_text(f"{governor}\n")
    assert read_processor([]).mhz == 2600
    assert governors() == {"performance"}


def test_the_time_of_children_is_ours_while_they_run_and_when_they_have_ended():
    before = read_processor([os.getpid()])
    with subprocess.Popen([sys.executable, "-c", f"{WORK}\ninput()"], stdin=subprocess.PIPE) as child:
        while read_processor([child.pid]).own < 0.25:
            pass
        assert child.pid in process_tree([os.getpid()])
        while_it_runs = read_processor([os.getpid()])
        child.communicate(b"\n")
    assert while_it_runs.own - before.own > 0.2
    assert read_processor([os.getpid()]).own >= while_it_runs.own
    assert read_processor([os.getpid()]).worked > before.worked
    assert allowed_cores() == os.sched_getaffinity(0)
