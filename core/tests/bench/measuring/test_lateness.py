"""Tests of the calls after which a device goes on."""

from longca_bench.measuring.lateness import LATE, Lateness


def test_a_single_pause_of_the_host_is_no_fault() -> None:
    lateness = Lateness()
    assert [lateness.take(seconds) for seconds in (0.0, 1.5 * LATE, 1e-5, LATE)] == [""] * 4


def test_a_kernel_that_is_late_again_is_named_with_its_late_calls() -> None:
    lateness = Lateness()
    said = [lateness.take(seconds) for seconds in (2e-3, 0.0, 0.0, 1.51e-3)]
    assert said == ["", "", "", "the device went on for 1.51 ms after the call had ended, and 2 of 4 calls were late"]
