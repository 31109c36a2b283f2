"""Deadlines of processes that run hooks: a busy machine is no plugin's fault."""

import time

import pytest

from longca.discovery import hosting
from longca.discovery.candidates import Candidate
from longca.discovery.hosting import HookHost, HostError
from longca.processor_time import waited

SECONDS, LONGER = 2.0, 4.0


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A plugin whose import takes longer than its deadline."""
    (tmp_path / "slow_plugin.py").write_text(f"import time\ntime.sleep({LONGER})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return Candidate("slow", "slow", "1.0", "slow_plugin", "", "")


def imported(candidate):
    """The first message of a plugin's process."""
    host = HookHost(candidate, SECONDS)
    try:
        while (message := host.message(0.05)) is None:
            pass
        return message
    finally:
        host.close()


def test_a_slow_import_is_late(slow):
    with pytest.raises(HostError, match="its import did not end within 2 s"):
        imported(slow)


def test_time_without_a_processor_does_not_count(slow, monkeypatch):
    monkeypatch.setattr(hosting, "waited", lambda pid: time.monotonic())
    assert b'"problem":""' in imported(slow)


def test_no_more_than_some_seconds_are_excused(slow, monkeypatch):
    monkeypatch.setattr(hosting, "waited", lambda pid: 1000 * time.monotonic())
    monkeypatch.setattr(hosting, "_EXCUSED_S", 0.5)
    with pytest.raises(HostError, match="did not end within"):
        imported(slow)


def test_the_wait_of_no_process_is_zero():
    assert waited(2**30) == 0.0
