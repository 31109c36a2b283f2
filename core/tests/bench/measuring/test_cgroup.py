"""Control groups: where they are, and what happens where the system gives none. `test_workers` ends real ones."""

import os
from pathlib import Path

import pytest

from longca_bench.measuring import cgroup
from longca_bench.measuring.cgroup import can_join, computed_in, end_cgroups, group_of, join_cgroup, own_cgroup

#: Lines of /proc/self/mountinfo and /proc/self/cgroup, and the folder of the group.
SYSTEMS = {
    "cgroup v2": ("30 24 0:26 / /sys/fs/cgroup rw - cgroup2 c rw", "0::/user.slice/a", "user.slice/a"),
    "both versions": (
        "31 25 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 c rw\n32 25 0:28 / /x rw - cgroup c rw,cpu",
        "4:memory:/session\n0::/",
        "unified",
    ),
    "a part of the tree": ("30 24 0:26 /docker/a /sys/fs/cgroup ro - cgroup2 c rw", "0::/docker/a/b", "b"),
    "a group outside of the tree": ("30 24 0:26 /docker/a /sys/fs/cgroup ro - cgroup2 c rw", "0::/docker/b", None),
    "version 1 alone": ("32 25 0:28 / /sys/fs/cgroup/cpu rw - cgroup c rw,cpu", "4:memory:/", None),
    "no such files": (None, None, None),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_own_group_is_found(tmp_path, name):
    mounts, groups, folder = SYSTEMS[name]
    if mounts is not None:
        (tmp_path / "mountinfo").write_text(f"24 1 0:22 / / rw - ext4 /dev/vda rw\n{mounts}\n")
        (tmp_path / "cgroup").write_text(f"{groups}\n")
    assert own_cgroup(tmp_path) == (None if folder is None else Path("/sys/fs/cgroup") / folder)


def make(folder):
    """What a system does for a new folder: the files of a group are there."""
    os.mkdir(folder)
    for name in ("cgroup.procs", "cgroup.kill"):
        (folder / name).touch()


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A folder in which groups can be made and removed."""
    remove = os.rmdir

    def rmdir(folder):
        for file in Path(folder).iterdir():
            file.unlink()
        remove(folder)

    monkeypatch.setattr(Path, "mkdir", make)
    monkeypatch.setattr(os, "rmdir", rmdir)
    monkeypatch.setattr(cgroup, "own_cgroup", lambda: tmp_path)
    return tmp_path


def test_a_process_joins_a_group_of_its_own(system):
    assert join_cgroup("7-8")
    assert (system / f"longca-7-8-{os.getpid()}" / "cgroup.procs").read_text() == "0"


def test_groups_are_ended_by_owner_and_worker(system, monkeypatch):
    ended = []

    def remove(group):
        ended.append((group.name, (group / "cgroup.kill").read_text()))
        return False

    monkeypatch.setattr(cgroup, "_remove", remove)
    for name in ("7-8-1", "7-8-2", "7-9-1", "70-8-1"):
        make(system / f"longca-{name}")
    end_cgroups("7-8", 2)
    assert ended == [("longca-7-8-2", "1")]
    ended.clear()
    end_cgroups("7-*")
    assert sorted(ended) == [("longca-7-8-1", "1"), ("longca-7-8-2", "1"), ("longca-7-9-1", "1")]


def test_the_time_of_a_worker_is_that_of_its_group(system):
    make(system / "longca-7-8-2")
    (system / "longca-7-8-2" / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n")
    group = group_of("7-8", 2)
    assert group == system / "longca-7-8-2"
    assert computed_in(group) == 1.5
    assert group_of("7-8", 3) is None
    assert computed_in(system / "gone") == 0.0


def test_a_question_leaves_nothing(system):
    assert can_join()
    assert not list(system.iterdir())


@pytest.mark.parametrize("fault", ["no group", "read-only", "older than Linux 5.14", "not delegated"])
def test_without_a_group_nothing_happens(system, monkeypatch, fault):
    def mkdir(folder):
        if fault == "read-only":
            raise OSError(30, "Read-only file system")
        make(folder)
        if fault == "not delegated":
            (folder / "cgroup.procs").unlink()
            (folder / "cgroup.procs").symlink_to("/proc/version")  # writing fails, for root too
        else:
            (folder / "cgroup.kill").unlink()

    if fault == "no group":
        monkeypatch.setattr(cgroup, "own_cgroup", lambda: None)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert not join_cgroup("7-8")
    assert not list(system.iterdir())
    end_cgroups("7-8")
