"""The control group (cgroup v2) of a worker, where the system lets this user make one.

A process is born in its parent's group, whichever session and process group it takes, and whoever becomes its parent.
The system ends a group at once, also a chain of processes that each fork and end. Where no group can be made, workers
have none, and `longca.processes` alone ends them.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["can_join", "computed_in", "end_cgroups", "group_of", "join_cgroup", "own_cgroup"]

_PAUSE = 0.005
_PATIENCE = 2.0  # seconds until a group that was ended is gone


def own_cgroup(process: Path = Path("/proc/self")) -> Path | None:
    """The folder of a process's group, or None if the system has no cgroup v2.

    Args:
        process: The process's folder in /proc.
    """
    with suppress(OSError, ValueError, StopIteration):
        mounts = map(str.split, (process / "mountinfo").read_text("utf-8").splitlines())
        root, point = next((each[3], each[4]) for each in mounts if each[each.index("-") + 1] == "cgroup2")
        groups = (process / "cgroup").read_text("utf-8").splitlines()
        inside = next(line.removeprefix("0::") for line in groups if line.startswith("0::"))
        return Path(point) / Path(inside).relative_to(root)
    return None


def join_cgroup(owner: str) -> bool:
    """Puts this process into a new group, if that is allowed, and says whether it is there.

    Args:
        owner: The owner in the group's name, which `end_cgroups` takes.
    """
    group = _made(owner)
    if group is None:
        return False
    try:
        (group / "cgroup.procs").write_text("0")
    except OSError:
        _remove(group)
        return False
    return True


def can_join() -> bool:
    """Whether a worker of this user gets a group: one can be made here, and ended."""
    group = _made("question")
    return group is not None and not _remove(group)


def group_of(owner: str, worker: int) -> Path | None:
    """The folder of a worker's group, or None if it has none.

    Args:
        owner: The owner, as `join_cgroup` got it.
        worker: The process that joined the group.
    """
    parent = own_cgroup()
    group = parent / _name(owner, worker) if parent else None
    return group if group is not None and group.is_dir() else None


def computed_in(group: Path) -> float:
    """Seconds that all processes of a group have computed, ended ones too. 0 if the group is gone."""
    with suppress(OSError, ValueError):
        facts = dict(map(str.split, (group / "cpu.stat").read_text("ascii").splitlines()))
        return int(facts.get("usage_usec", 0)) / 1e6
    return 0.0


def end_cgroups(owner: str, worker: int | None = None) -> None:
    """Ends every process in an owner's groups, and removes them.

    Args:
        owner: The owner, as `join_cgroup` got it, or a pattern such as `7-*`.
        worker: The process that joined the group. None for all groups of the owner.
    """
    parent, deadline = own_cgroup(), time.monotonic() + _PATIENCE
    for group in parent.glob(_name(owner, "*" if worker is None else worker)) if parent else ():
        with suppress(OSError):
            (group / "cgroup.kill").write_text("1")
        while _remove(group) and time.monotonic() < deadline:
            time.sleep(_PAUSE)


def _name(owner: str, worker: int | str) -> str:
    return f"longca-{owner}-{worker}"


def _made(owner: str) -> Path | None:
    """A new group for this process. None if it cannot be made, or not be ended: before Linux 5.14."""
    if (parent := own_cgroup()) is None:
        return None
    group = parent / _name(owner, os.getpid())
    with suppress(OSError):
        group.mkdir()
        if (group / "cgroup.kill").exists():
            return group
        _remove(group)
    return None


def _remove(group: Path) -> bool:
    """Removes a group with the groups that its processes made in it, and says whether it is still there."""
    for folder, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):
            os.rmdir(folder)
    return group.exists()
