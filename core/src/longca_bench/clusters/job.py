"""The job of a run on a cluster: its nodes, its limits, and the command that each node runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longca.errors import RequestError
from longca.import_path import safe_python
from longca_advice.record_lines import RECORDS

__all__ = [
    "WARNING",
    "ClusterJob",
    "count_records",
    "minutes_of",
    "named_option",
    "sbatch_lines",
    "slurm_time",
    "unseen_folder",
]

#: Seconds before the time limit at which a job is put back into the queue.
WARNING = 120
#: The shortest time limit, in minutes: the warning, the start of the ranks, and a case.
_LEAST = 5
#: The longest time limit, in minutes: a year.
_MOST = 365 * 1440
#: Options of sbatch that options of `longca run` or the job itself set.
_OURS = {
    "nodes": "take --nodes",
    "ntasks-per-node": "each node has one task, which starts its ranks",
    "time": "take --time",
    "partition": "take --partition",
    "account": "take --account",
    "signal": "the job needs its own signal to go on after the time limit",
    "no-requeue": "it goes back into the queue at its time limit",
    "ntasks": "each node has one task, which starts its ranks",
    "array": "it is one run, whose records have one folder",
    "wrap": "it runs longca",
}
#: File systems that other hosts see. FUSE is counted among them.
_SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "fuse", "panfs", "wekafs", "cifs", "smb", "afs", "gluster", "9p")


@dataclass(frozen=True)
class ClusterJob:
    """A run as a job.

    Attributes:
        name: Name of the job.
        arguments: The arguments of `longca`, with the folder of the records and --resume.
        out: Folder of the records.
        folder: The working directory.
        nodes: Number of nodes.
        ranks: Ranks on each node, or None for a run without ranks.
        gpus: GPUs of each node. 0 on CPUs.
        minutes: The time limit.
        options: Options of sbatch by name. True for an option without a value.
    """

    name: str
    arguments: tuple[str, ...]
    out: Path
    folder: Path
    nodes: int
    ranks: int | None
    gpus: int
    minutes: int
    options: Mapping[str, str | bool]

    def command(self, host: str, port: str, number: str) -> list[str]:
        """The command of each node.

        One node starts its ranks by itself. Several nodes run torchrun, and meet at the first host.

        Args:
            host: The first host.
            port: The port of the rendezvous on it.
            number: The job's number, which tells the rendezvous of several jobs apart.
        """
        if self.nodes == 1:
            ranks = () if self.ranks is None else ("--nproc", str(self.ranks))
            return safe_python("-m", "longca", *self.arguments, *ranks)
        meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{port}", f"--rdzv-id={number}")
        sizes = (f"--nnodes={self.nodes}", f"--nproc-per-node={self.ranks}", "--max-restarts=0")
        torchrun = safe_python("-m", "torch.distributed.run", *sizes, *meeting)
        return [*torchrun, "--no-python", "--", *safe_python("-m", "longca", *self.arguments)]


def count_records(out: Path) -> int:
    """The number of records in a run's folder."""
    file = out / RECORDS
    return file.read_bytes().count(b"\n") if file.exists() else 0


def minutes_of(text: str) -> int:
    """A time limit in minutes.

    Args:
        text: Minutes, H:MM:SS or D-HH:MM:SS.

    Raises:
        RequestError: Another form, less than 5 minutes, or more than a year.
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)|(\d+)", text, re.ASCII)
    if found is None:
        raise RequestError(f"--time is {text!r}; give minutes, such as 90, or H:MM:SS, or D-HH:MM:SS")
    days, hours, minutes, seconds, alone = (int(part or 0) for part in found.groups())
    total = alone + days * 1440 + hours * 60 + minutes + (seconds > 0)
    if total < _LEAST:
        raise RequestError(f"--time is {text}, and a job needs {_LEAST} minutes to start and to measure a case")
    if total > _MOST:
        raise RequestError(f"--time is {text}; give at most {_MOST // 1440} days")
    return total


def named_option(name: str, value: str | None) -> dict[str, str | bool]:
    """An option of sbatch whose value is a name. Empty without a value.

    Args:
        name: The option, such as `partition`.
        value: The name, or None.

    Raises:
        RequestError: The value is empty, or has white space or control characters.
    """
    if value is None:
        return {}
    if not value.isprintable() or value.split() != [value]:
        raise RequestError(f"--{name} is {value!r}; give the {name}'s name, or leave it out")
    return {name: value}


def slurm_time(minutes: int) -> str:
    """A time limit in Slurm's form D-HH:MM:SS."""
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"


def sbatch_lines(texts: Sequence[str]) -> dict[str, str | bool]:
    """Options of sbatch by name, from texts such as `qos=high` or `--exclusive`.

    Raises:
        RequestError: A text is no long option of sbatch, or the job itself sets the option.
    """
    found: dict[str, str | bool] = {}
    for text in texts:
        name, is_set, value = text.removeprefix("--").partition("=")
        if not re.fullmatch(r"[a-z][a-z0-9-]+", name) or not value.isprintable() or (is_set and not value):
            raise RequestError(f"--sbatch is {text!r}; give a long option of sbatch, such as qos=high or hint=compute")
        if name in _OURS:
            raise RequestError(f"--sbatch {text} contradicts the job: {_OURS[name]}")
        found[name] = value if is_set else True
    return found


def unseen_folder(out: Path) -> str | None:
    """The type of the file system that a folder is on, if no other host sees it. None if others may see it."""
    try:
        lines = Path("/proc/mounts").read_text("utf-8").splitlines()
    except OSError:
        return None
    mounts = [(fields[1].encode().decode("unicode_escape"), fields[2]) for fields in map(str.split, lines)]
    over = [(len(point), kind) for point, kind in mounts if out.resolve().is_relative_to(point)]
    kind = max(over, default=(0, "nfs"))[1]
    return None if kind.startswith(_SHARED) else kind
