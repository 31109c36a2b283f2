"""Noise: a neighbour, a hot GPU and a drift are named, and a measurement beside them is made again."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from longca_bench.measuring import gpu_state as gpu_states
from longca_bench.measuring import noise
from longca_bench.measuring.gpu_state import gpu_state
from longca_bench.measuring.noise import Noise, own_processes, quietly, wait_idle
from longca_bench.measuring.timing import time_calls
from longca_bench.measuring.world import World

CPU = World(torch.device("cpu"))
STEADY, RISING = [0.01] * 20, [0.01 + 0.0001 * n for n in range(20)]
SPIN = f"{sys.executable} -c 'while True: pass'"


@pytest.fixture
def others(monkeypatch):
    """Sets the number of cores, of 8, that other processes use: always, or once until the next look a second later."""
    now = SimpleNamespace(cores=0.0, once=0.0, worked=0.0, at=0.0)

    def worked(_):
        now.at += 1
        if now.cores is None:
            return None
        now.worked, now.once = now.worked + max(now.cores, now.once), 0.0
        return now.worked

    monkeypatch.setattr(Noise, "_seconds_of_others", worked)
    monkeypatch.setattr(noise, "_allowed_cores", lambda: range(8))
    monkeypatch.setattr(noise, "_mhz", lambda: 2600.0)
    monkeypatch.setattr(noise, "_LOOK", 0.0)
    clock = {name: getattr(time, name) for name in ("time", "sleep")}
    monkeypatch.setattr(noise, "time", SimpleNamespace(monotonic=lambda: now.at, **clock))
    return now


@pytest.fixture
def gpu(monkeypatch):
    """Sets the numbers of a GPU."""
    now = SimpleNamespace(used=0.0, clock={"sm_clock": 1980, "throttle": ["SwPowerCap"]})
    monkeypatch.setattr(noise, "gpu_used_by_others", lambda own, since, *, worked: now.used if worked else 0.0)
    monkeypatch.setattr(noise, "gpu_clock", lambda: now.clock)
    return now


def test_a_quiet_machine_is_not_busy_and_its_numbers_are_plain_data(others, gpu):
    found = Noise("cuda").stop(STEADY)
    assert json.loads(json.dumps(found)) == found
    assert found == {
        "other_cores": 0.0, "mhz": [2600.0, 2600.0], "drift": 0.0, "other_gpu": 0.0, "sm_clock": [1980, 1980],
        "throttle": ["SwPowerCap"], "busy": False, "why": "",
    }  # fmt: skip
    assert "other_gpu" not in Noise("cpu").stop(STEADY)


@pytest.mark.parametrize(
    ("kind", "cores", "why"),
    [
        ("cpu", 0.25, ""),  # of 8 cores, or an error of the count
        ("cpu", 2.3, "2.3 cores of other processes"),
        ("cpu", None, ""),
        ("cuda", 5.0, ""),  # three cores are left to launch from
        ("cuda", 7.0, "7.0 cores of other processes"),
    ],
)
def test_other_processes_on_the_cores(others, gpu, kind, cores, why):
    others.cores = cores
    found = Noise(kind).stop(STEADY)
    assert (found["other_cores"], found["busy"], found["why"]) == (cores, bool(why), why)


@pytest.mark.parametrize(
    ("used", "throttle", "why"),
    [
        (0.4, [], "another process used 40 % of the GPU"),
        (0.04, [], ""),
        (None, [], ""),
        (0.0, ["SwPowerCap", "SwThermalSlowdown"], "the GPU lowers its clocks: SwThermalSlowdown"),
    ],
)
def test_other_processes_on_the_gpu_and_its_faults(others, gpu, used, throttle, why):
    gpu.used, gpu.clock = used, {"sm_clock": 1500, "throttle": throttle}
    found = Noise("cuda").stop(STEADY)
    assert (found["other_gpu"], found["why"]) == (used, why)


def test_samples_that_drift(others):
    assert Noise("cpu").stop(RISING)["why"] == "samples drift by +17 %"
    found = Noise("cpu").stop([0.01 + 0.00001 * n for n in range(20)])  # a drift, but no disturbance
    assert (found["drift"], found["busy"]) == (pytest.approx(0.0188, abs=1e-4), False)


def test_a_gpu_that_nvml_does_not_know_is_not_busy(others, monkeypatch):
    from pynvml import NVMLError_Uninitialized

    def fails():
        raise NVMLError_Uninitialized

    monkeypatch.setattr(gpu_states, "_handle", fails)
    found = Noise("cuda").stop(STEADY)
    assert (found["other_gpu"], found["sm_clock"], found["throttle"], found["busy"]) == (None, [None, None], [], False)


def test_a_real_neighbour_is_seen_and_our_own_child_is_not_one():
    # The shell ends at once, so that the neighbour is no descendant of this process.
    neighbour = int(subprocess.check_output(["sh", "-c", f"{SPIN} >/dev/null 2>&1 & echo $!"]))
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert child.pid in own_processes([os.getpid()])
        assert neighbour not in own_processes([os.getpid()])
        watch, same, start = Noise("cpu"), Noise("cpu", [neighbour]), time.monotonic()
        while noise._seconds([neighbour]) < 0.5 or noise._seconds([child.pid]) < 0.5:
            time.sleep(0.05)
        beside, as_ours = watch.stop(), same.stop()
        seconds = time.monotonic() - start
    finally:
        os.kill(neighbour, signal.SIGKILL)
        child.kill()
        child.wait()
    assert beside["busy"]
    assert (beside["other_cores"] - as_ours["other_cores"]) * seconds > 0.3


def measured(others, *busy, samples=STEADY, world=CPU, **options):
    """The number of measurements and their noise. Neighbours use this many cores each time."""
    made = []

    def measure():
        others.once = busy[min(len(made), len(busy) - 1)]
        made.append(len(made))
        return SimpleNamespace(samples=samples, number=len(made))

    timing, found = quietly(measure, world, **options)
    assert timing.number == len(made), "the last one counts"
    return len(made), found


def test_a_disturbed_measurement_is_made_once_more_and_marked(others):
    assert measured(others, 0.0)[0] == 1
    count, found = measured(others, 3.0, 0.0)
    assert (count, found["busy"]) == (2, False)
    count, found = measured(others, 3.0)
    assert (count, found["busy"], found["why"]) == (2, True, "3.0 cores of other processes")
    assert "waited" not in found


def test_with_a_wait_it_is_repeated_until_it_is_quiet_or_three_times(others):
    count, found = measured(others, 3.0, 3.0, 0.0, wait=600.0)
    assert (count, found["busy"], found["measured"]) == (3, False, 3)
    count, found = measured(others, 0.0, samples=RISING, wait=600.0)  # a drift of its own
    assert (count, found["why"], found["waited"] > 0) == (4, "samples drift by +17 %", True)


def test_waiting_ends_in_time_and_when_the_machine_is_quiet(others):
    assert wait_idle("cpu", 50.0)
    others.cores = 3.0
    start = others.at
    assert not wait_idle("cpu", 50.0)
    assert 50.0 <= others.at - start < 60.0
    count, found = measured(others, 3.0, wait=1.0)
    assert (count, found["busy"]) == (1, True), "a case that waited in vain is measured once"


class Ranks(World):
    """Two ranks, of which the other one has answers of its own."""

    def __init__(self, *answers):
        super().__init__(torch.device("cpu"))
        self.answers = iter(answers)

    def everyone(self, value, kind=None):
        return [value, next(self.answers)]


def test_ranks_repeat_together_and_the_disturbed_one_is_recorded(others):
    busy, quiet = ({"busy": each, "why": "rank 1's" if each else ""} for each in (True, False))
    count, found = measured(others, 0.0, world=Ranks((11,), (busy, 0.0), (quiet, 0.0)))
    assert (count, found["busy"]) == (2, False)
    count, found = measured(others, 0.0, world=Ranks((11,), (busy, 0.0), (busy, 0.0)))
    assert (count, found) == (2, busy)


#: Keeps the GPU busy until it is ended, and makes a file when it has begun.
GPU_NEIGHBOUR = """
import sys, torch
x = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
while True:
    for _ in range(20):
        x @ x
    torch.cuda.synchronize()
    open(sys.argv[1], "w").close()
"""


@pytest.mark.gpu
def test_a_real_neighbour_on_the_gpu_is_seen_until_it_ends(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch sees none here")
    tmp_path.joinpath("spin.py").write_text(GPU_NEIGHBOUR)
    spin = f"{sys.executable} {tmp_path / 'spin.py'} {tmp_path / 'begun'}"
    neighbour = int(subprocess.check_output(["sh", "-c", f"{spin} >/dev/null 2>&1 & echo $!"]))
    x, world = torch.ones(2**20, device="cuda"), World(torch.device("cuda"))
    try:
        while not (tmp_path / "begun").exists():
            time.sleep(0.1)
        watch, same = Noise("cuda"), Noise("cuda", [neighbour])
        time.sleep(1.0)  # NVML samples processes every 0.2 s
        timing = time_calls(lambda: x.sin(), world)
        beside, as_ours = watch.stop(timing.samples), same.stop(timing.samples)
        with_it, without = gpu_state(), gpu_state([neighbour])
        assert not wait_idle("cuda", 0.0)
    finally:
        os.kill(neighbour, signal.SIGKILL)
    assert beside["other_gpu"] > 0.3
    assert "another process used" in beside["why"]
    assert as_ours["other_gpu"] == 0.0
    assert (with_it["others"], without["others"]) == (1, 0)
    assert wait_idle("cuda", 30.0)
    timing, found = quietly(lambda: time_calls(lambda: x.sin(), world), world)
    assert (found["other_gpu"], len(found["sm_clock"])) == (0.0, 2)
