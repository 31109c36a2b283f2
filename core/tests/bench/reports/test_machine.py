"""Facts about timing, by runs whose samples are known."""

from longca_bench.measuring.repeatability import Repeatability
from longca_bench.reports.machine import find_timing, governors

QUIET, BUSY = {"busy": False, "why": ""}, {"busy": True, "why": "2.3 cores of other processes"}


def test_a_steady_machine_is_trusted():
    run = [[0.01 + 0.0001 * n for n in range(5)]] * 8
    timing, noise = find_timing("cpu", Repeatability(run, run, (QUIET, QUIET)))
    assert (timing.name, timing.ok, noise.name, noise.ok) == ("CPU timing", True, "CPU noise", True)
    assert timing.found.startswith("results must differ by more than 0.0% to mean something on this machine; ")
    assert timing.found.endswith(": no difference shown")
    assert noise.found == "nothing disturbed the runs"


def test_a_noisy_machine_is_not_trusted_and_its_neighbour_is_named():
    found = Repeatability([[0.01] * 5] * 8, [[0.0131] * 5] * 8, (QUIET, BUSY))
    timing, noise = find_timing("cuda", found)
    assert (timing.name, timing.ok, noise.ok) == ("GPU timing", False, False)
    assert "more than 31.0%" in timing.found
    assert (
        "of two equal runs A and B, A took 0.763 times as long as B, 95 % interval 0.763–0.763: A faster"
        in timing.found
    )
    assert noise.found == "run B: 2.3 cores of other processes"
    assert "--ab" in timing.advice
    assert "--wait-idle" in noise.advice


def test_the_governor_is_that_of_the_allowed_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(1, 4))
    for core, governor in enumerate(["ondemand", "powersave", "performance"]):
        folder = tmp_path / f"cpu{core}/cpufreq"
        folder.mkdir(parents=True)
        folder.joinpath("scaling_governor").write_text(f"{governor}\n")
    assert governors(tmp_path) == {"powersave", "performance"}
    assert governors(tmp_path / "nothing") == set()
