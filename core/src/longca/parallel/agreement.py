"""Agreement: the ranks of a mesh compare a call before its data move.

Each rank writes what it was asked to the store of `torch.distributed`. The ranks compare digests. If all are equal, the
call goes on. Else every rank raises the same error, which says what differs and on which ranks. A rank that fails by
itself writes its error, and the others raise an error that names this rank. No device and no collective is involved, so
any thread of the program may be in a collective at that time.

Ranks compare at the first use of a plan. Later calls find the plan and exchange nothing, so no rank would see that the
others reuse another plan for tensors of equal shapes. Each rank keeps a tally of its calls. The ranks compare it with
every new call, and in every EVERYth known one.

So a call is either new to all ranks or to none, on these conditions:

- All ranks of the mesh make the same calls in the same order, as for any collective.
- They reuse masks alike. A rank that makes a mask anew, while the others reuse theirs, is alone with a new call.
- Each mesh has a cache of its own. So calls on other meshes, which other ranks do not make, displace no plan.

A rank that is alone with a new call raises an alarm. If the others made a known call in its place, all are told within
seconds (`longca.parallel.alarms`). If they made none, the rank waits as long as the store waits for a peer, which is
the timeout of `torch.distributed.init_process_group`. Then it raises an error that names the absent ranks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import Store, _get_default_store

from longca.errors import RequestError
from longca.parallel.alarms import ALARM, listen, raise_alarm
from longca.parallel.told import FAILED, named, sentences
from longca.parallel.turns import digest_of, turn_of
from longca.plain_text import plain_text

__all__ = ["EVERY", "PATIENCE", "Ranks"]

#: Known calls in a row after which the ranks compare them. A comparison takes the host about a millisecond.
EVERY = 256

#: Seconds that a rank with an error of its own waits for the others, before it raises the error.
PATIENCE = 10.0
#: Characters of an error that others are told.
_MOST_TEXT = 1000


class Ranks:
    """The ranks of a mesh, as one of them sees them.

    Args:
        store: The store that all of them reach.
        members: Their numbers in `torch.distributed`.
        rank: The number of this one.
        name: A name that distinguishes meshes of the same ranks.
    """

    def __init__(self, store: Store, members: Sequence[int], rank: int, name: str = "") -> None:
        self._store, self._members, self._rank = store, members, rank
        about = json.dumps([list(members), name]).encode()
        self._prefix = f"longca/{digest_of(about)}"
        self._turn = turn_of(self._prefix, rank)
        self._is_settled = len(members) == 1
        self._timeout: float = store.timeout.total_seconds()  # type: ignore[attr-defined]  # PyTorch's stubs lack it

    @classmethod
    def of(cls, mesh: DeviceMesh) -> Ranks:
        """The ranks of a mesh that includes this process."""
        name = f"{tuple(mesh.mesh.shape)} {mesh.mesh_dim_names}"
        return cls(_get_default_store(), mesh.mesh.flatten().tolist(), dist.get_rank(), name)

    def note(self, number: int, words: Mapping[str, str]) -> bool:
        """Notes a call for the next comparison, before its data move. Returns whether the ranks are to compare now.

        Args:
            number: A number that stands for everything the call was asked. All ranks give it alike.
            words: The same in words that ranks compare.

        Raises:
            RequestError: This rank made another call before, where others came with a new one or failed.
        """
        turn = self._turn
        if turn.told:
            self._raise_told()
        turn.latest = words
        turn.is_moving = True
        turn.calls += number.to_bytes(8, "little")
        return len(turn.calls) >= 8 * EVERY

    def moved(self) -> None:
        """The data of the latest call have moved."""
        self._turn.is_moving = False

    def agree(self, said: Mapping[str, str]) -> None:
        """Returns if all ranks say the same, and have made the same calls since they last compared.

        Args:
            said: Names of things, and their values on this rank.

        Raises:
            RequestError: The ranks differ, or one has failed, or one did not come. All ranks that came raise it.
        """
        if len(self._members) == 1:
            return
        self._is_settled = True  # whatever this raises, the others know
        if self._turn.told:
            self._raise_told()
        self._catch_up()
        text = json.dumps({**said, **self._turn.words()})
        digest = digest_of(text.encode())
        key = self._turn.write(self._store, digest, text)
        if not self._meet(key, digest, text, self._timeout):
            raise RequestError(self._absence(key))
        if self._count(key, digest) != len(self._members):
            told = {rank: json.loads(self._store.get(f"{key}/{rank}")) for rank in self._members}
            raise RequestError(sentences(told))
        self._is_settled = False
        listen(self._store)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tells the other ranks of an error inside. They learn it where they compare next."""
        try:
            yield
        except Exception as error:
            self.tell(error)
            raise

    def tell(self, error: Exception) -> None:
        """Tells the other ranks of an error of this one. They learn it where they compare next.

        It waits for them for `PATIENCE` seconds at most. They may have no new call to make.
        """
        if not self._is_settled:
            self._catch_up()
            text = json.dumps({FAILED: plain_text(f"{type(error).__name__}: {error}", _MOST_TEXT)})
            with suppress(RuntimeError):  # the error counts more than a store that is gone
                self._meet(self._turn.write(self._store, FAILED, text), FAILED, text, PATIENCE)

    def _raise_told(self) -> None:
        """Raises the error that the listener heard of."""
        message, self._turn.told = self._turn.told, ""
        self._catch_up()
        raise RequestError(message)

    def _catch_up(self) -> None:
        """Goes on to the next comparison if the others came to this one after this rank had given up."""
        turn = self._turn
        if turn.has_come and self._count(f"{self._prefix}/{turn.number}", "all") == len(self._members):
            turn.end()

    def _meet(self, key: str, digest: str, text: str, seconds: float) -> bool:
        """Whether all ranks come in time. A rank that waits for long raises an alarm."""
        size, began, alarm = len(self._members), time.monotonic(), ALARM
        while self._count(key, digest) < size and self._count(key, "all") < size:
            if (waited := time.monotonic() - began) > seconds:
                self._turn.has_come = True
                return False
            if waited > alarm:
                raise_alarm(self._store, self._turn, text)
                alarm = inf
            time.sleep(min(0.05, waited / 10))
        # Whoever has come to this comparison has read the one before.
        for old in self._turn.end():
            self._store.delete_key(old)
        return True

    def _count(self, key: str, what: str) -> int:
        return int(self._store.get(f"{key}/{what}"))

    def _absence(self, key: str) -> str:
        absent = [rank for rank in self._members if not self._store.check([f"{key}/{rank}"])]
        return (
            f"{named(absent)} made no new call on this mesh within {self._timeout:g} s, while "
            f"rank {self._rank} waited. All ranks of a mesh make the same calls in the same order, and reuse masks "
            "alike. The timeout of init_process_group says how long a rank waits"
        )
