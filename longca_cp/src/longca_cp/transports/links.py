"""The links of a mesh's axes: the copy engine was asked for, or `auto` takes it where it is verified."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path

import torch
import torch.distributed as dist

from longca.errors import LongCAError, UnsupportedError
from longca.manifests.strategy import Transport
from longca_cp.overlap import LINKED_RANKS, takes_link
from longca_cp.transports.copy_engine import CopyEngineLink
from longca_cp.transports.host_memory import everyones
from longca_cp.transports.link import Link
from longca_cp.transports.shared_memory import SharedMemoryLink

__all__ = ["Lack", "lack_of", "link_of", "links_of"]

_log = logging.getLogger("longca")

_Links = weakref.WeakValueDictionary[torch.device, Link]
#: The links of living strategies, by their groups and devices.
_LINKS: weakref.WeakKeyDictionary[dist.ProcessGroup, _Links] = weakref.WeakKeyDictionary()

_BOOT = Path("/proc/sys/kernel/random/boot_id")
#: PyTorch's variable that lets ranks share a GPU, for tests. Else symmetric memory refuses it.
_SHARED_GPU = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"


@dataclass(frozen=True)
class Lack:
    """Why the ranks of an axis have no link, as the end of a sentence, and whether they are on several hosts."""

    reason: str
    hosts: bool = False


def links_of(
    groups: Mapping[str, dist.ProcessGroup], device: torch.device, transport: Transport
) -> dict[str, Link | None]:
    """The link of each axis, or None where collectives move its tensors. All ranks of the mesh call it together.

    `auto` takes a link where `takes_link` says so and the ranks reach each other's memory. `copy_engine` takes one on
    each axis within a host. The reason for collectives is logged once.
    """
    on_gpus, links, lacks = device.type == "cuda", dict[str, Link | None](), dict[str, Lack]()
    for axis, group in groups.items():  # all of them before an error, because peers wait for this rank
        found: Link | Lack | None = None
        if takes_link(transport, group.size(), on_gpus):
            found = link_of(group, device)
        elif transport is Transport.AUTO and on_gpus and group.size() > 1:
            found = Lack(f"more than {LINKED_RANKS} GPUs were not measured; transport='copy_engine' takes copy engines")
        links[axis] = None if isinstance(found, Lack) else found
        if isinstance(found, Lack):
            lacks[axis] = found
    has_link = any(link is not None for link in links.values())
    for axis, lack in lacks.items():
        if transport is Transport.COPY_ENGINE and not (lack.hosts and has_link):
            raise UnsupportedError(
                f"transport='copy_engine' was asked for, and {lack.reason}. Ask for transport='collectives' or 'auto'"
            )
        _say_collectives(axis, lack.reason)
    return links


def link_of(group: dist.ProcessGroup, device: torch.device) -> Link | Lack:
    """The link of several ranks of one axis, or the reason why there is none. All of them call it together."""
    known = _LINKS.setdefault(group, _Links())
    link = known.get(device)
    if all(everyones(group, link is not None)):
        assert link is not None, "this rank has it too"
        return link
    lack = lack_of(group, device)
    if lack is not None:
        return lack
    made = _make(group, device)
    if isinstance(made, Link):
        known[device] = made
        return made
    return Lack(made)


@cache
def _say_collectives(axis: str, reason: str) -> None:
    """Logs once why the tensors of an axis move by collectives."""
    _log.info("attention: tensors move along the axis %s by collectives, because %s", axis, reason)


def lack_of(group: dist.ProcessGroup, device: torch.device) -> Lack | None:
    """Why the ranks of a group cannot write into each other's memory, or None. All ranks call it together."""
    ranks = dist.get_process_group_ranks(group)
    facts = everyones(group, _Facts.of(device))
    for i, mine in enumerate(facts):
        if mine.lack:
            return Lack(f"rank {ranks[i]} {mine.lack}")
    # Ranks on two hosts come first: they have no link whatever else they lack.
    for i, j in sorted(permutations(range(len(facts)), 2), key=lambda pair: facts[pair[0]].host == facts[pair[1]].host):
        if lack := facts[i].lacks(facts[j]):
            return Lack(lack.format(mine=ranks[i], theirs=ranks[j]), hosts=facts[i].host != facts[j].host)
    return None


@dataclass(frozen=True)
class _Facts:
    """The facts about a rank's machine."""

    host: str  # until it boots again
    lack: str = ""  # why this rank can have no links, or an empty text
    device: str = ""  # the id of its device
    visible: tuple[tuple[str, bool], ...] = ()  # ids of visible devices, and whether its device reaches their memory

    @classmethod
    def of(cls, device: torch.device) -> _Facts:
        if not (_BOOT.is_file() and hasattr(os, "memfd_create")):
            return cls("", "is not on Linux")
        host = _BOOT.read_text()
        if device.type == "cpu":
            return cls(host)
        if device.type != "cuda":
            return cls(host, f"computes on {device.type}, and copy engines are those of CUDA devices")
        if lack := CopyEngineLink.lack(device):
            return cls(host, lack)
        ids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
        mine = device.index
        reach = [i == mine or torch.cuda.can_device_access_peer(mine, i) for i in range(len(ids))]
        return cls(host, "", ids[mine], tuple(zip(ids, reach, strict=True)))

    def lacks(self, peer: _Facts) -> str:
        """Why this rank cannot write into a peer's memory, as a format of `mine` and `theirs`. Empty if it can."""
        if self.host != peer.host:
            return "ranks {mine} and {theirs} are on two hosts"
        if not self.device:
            return ""
        if self.device == peer.device and os.environ.get(_SHARED_GPU) != "1":
            return "ranks {mine} and {theirs} share one GPU"
        reach = dict(self.visible)
        if peer.device not in reach:
            return "CUDA_VISIBLE_DEVICES of rank {mine} hides the GPU of rank {theirs}"
        return "" if reach[peer.device] else "the GPU of rank {mine} has no peer access to that of rank {theirs}"


def _make(group: dist.ProcessGroup, device: torch.device) -> Link | str:
    """A link that has moved a few bytes, or the reason why there is none. The same on all ranks."""
    made: list[Link] = []

    def make() -> None:
        made.append(SharedMemoryLink(group) if device.type == "cpu" else CopyEngineLink(group, device))

    # A rank that fails by itself must not leave the others in the trial, which is collective.
    reason = _failures(group, make) or _failures(group, lambda: made[0].trial())
    return made[0] if reason is None else f"a trial of the copy engine failed. {reason}"


def _failures(group: dist.ProcessGroup, call: Callable[[], str | None]) -> str | None:
    """What a call returns or raises on the ranks on which it fails, the same on all ranks."""
    try:
        failed = call()
    except (LongCAError, RuntimeError, OSError) as error:
        failed = str(error)
    ranks = dist.get_process_group_ranks(group)
    said = [f"rank {ranks[i]} says: {text}" for i, text in enumerate(everyones(group, failed)) if text]
    return "; ".join(said) or None
