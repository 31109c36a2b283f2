"""Link: the ranks of one axis, when each of them can write into the memory of the others.

A **window** is memory of every rank that all ranks of the link can address. A rank **sends** rows: it pushes them
into a window of a peer, and then **posts** a slot, which tells the peer that the rows are there. The peer **expects**
the slot before it reads. A rank copies its own rows into its window by itself. Posts of a slot are counted for each
sender and receiver. So a slot serves any number of calls, with one post for each expect.

A GPU has two lines of work: kernels on the current stream, and pushes with posts. Copies within a rank's own memory are
kernels, whatever call makes them: on H200s with driver 580 all of them waited for the multiprocessors that attention
had taken. So there is no third line, and callers make such copies where nothing else computes.

All methods but `window` and `slots` are local, and with CUDA none of them waits on the host. A program is right if it
would be right with every push and post done at once, in the order of the program.
"""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from longca.errors import LongCAError
from longca.parallel.pushes import Push, is_watched, pushing, tell, tell_window
from longca_cp.transports.host_memory import everyones, everyones_memory
from longca_cp.transports.strided import copy_words

__all__ = ["MOST_SLOTS", "Link", "Moves", "PeerError", "Slots", "Window"]

#: Pairs of tensors of equal shapes and dtypes: where rows go, and the rows. Both may be strided.
Moves = Iterable[tuple[Tensor, Tensor]]

#: Seconds for a trial of a link, and between two looks at it.
_TRIAL, _PAUSE = 20.0, 1e-3


class PeerError(LongCAError):
    """A peer did not post within the deadline, or a push failed. The message names the peer's rank."""


@dataclass(frozen=True, eq=False)
class Window:
    """A buffer of each rank of a link, which this process can write into. All have one shape and dtype."""

    buffers: tuple[Tensor, ...]  # by the ranks' places on the axis
    index: int  # the place of this process
    handle: object = None  # keeps the peers' memory mapped

    @property
    def mine(self) -> Tensor:
        """This rank's buffer, which peers write into. Nothing that outlives a call may be a view of it."""
        return self.buffers[self.index]

    def of(self, index: int) -> Tensor:
        """The buffer of the rank at a place on the axis."""
        return self.buffers[index]


#: Slots of one link that its plans may hold at a time.
MOST_SLOTS = 4096


@dataclass(eq=False)
class Slots:
    """Some slots of a link, for as long as this object lives. Their numbers are the same on all ranks."""

    first: int
    count: int
    level: int = 0  # the count of posts from which the present call counts

    @property
    def part(self) -> slice:
        """Their place among all slots."""
        return slice(self.first, self.first + self.count)

    def __getitem__(self, at: int) -> int:
        return range(self.first, self.first + self.count)[at]


class Counters:
    """The posts that ranks of a link make to each other, counted for each slot in memory that all ranks share.

    A rank counts its posts to each peer, and the posts that it has awaited from each. A post writes its count to the
    peer's memory. A wait ends when the count there is at least the awaited one. All ranks make the counters together.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self._index, columns = group, group.rank(), MOST_SLOTS + 2
        memory = everyones_memory(group, 8 * group.size() * columns)
        self.arrived = [each.view(torch.int64).view(group.size(), columns).numpy() for each in memory]
        #: Posts to each peer, and posts that were awaited from it, by this process: [peer, slot].
        self._posted, self._awaited = (np.zeros((group.size(), MOST_SLOTS), np.int64) for _ in "pa")
        self._given: weakref.WeakSet[Slots] = weakref.WeakSet()

    def slots(self, count: int) -> Slots:
        """See `Link.slots`."""
        taken = np.zeros(MOST_SLOTS, bool)
        for given in self._given:
            taken[given.part] = True
        taken = np.logical_or.reduce([np.unpackbits(said) for said in everyones(self._group, np.packbits(taken))])
        used = np.cumsum(taken, dtype=np.int64)
        free = used[count - 1 :] - np.concatenate([[0], used[: len(used) - count]]) == 0
        if not free.any():
            raise LongCAError(f"a plan asks for {count} slots, and {int((~taken).sum())} of {MOST_SLOTS} are free")
        slots = Slots(int(free.argmax()), count)
        # Posts to earlier owners may still be on their way, so counting goes on from the most that any rank has posted.
        slots.level = max(everyones(self._group, int(self._posted[:, slots.part].max(initial=0))))
        self.restart(slots, 0)
        self._given.add(slots)
        return slots

    def restart(self, slots: Slots, most: int) -> None:
        """See `Link.restart`."""
        slots.level += most
        self._posted[:, slots.part] = self._awaited[:, slots.part] = slots.level

    def post(self, index: int, slot: int) -> int:
        """Counts a post to a peer."""
        self._posted[index, slot] += 1
        return int(self._posted[index, slot])

    def expect(self, index: int, slot: int) -> int:
        """Counts an awaited post of a peer."""
        self._awaited[index, slot] += 1
        return int(self._awaited[index, slot])

    def missing(self, index: int, slot: int, count: int) -> bool:
        """Whether a peer has not posted as often as awaited."""
        return int(self.arrived[self._index][index, slot]) < count


class Link(ABC):
    """The ranks of one axis with mutual access to memory. All ranks make it together.

    All ranks of the group are on one host. The deadline is the seconds to wait for a post, by default the timeout of
    the process group.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, deadline: float | None = None) -> None:
        self._group, self.device = group, device
        self.size, self.index = group.size(), group.rank()
        self.deadline = _timeout(group, device) if deadline is None else deadline
        self._ranks = dist.get_process_group_ranks(group)
        self._counters = Counters(group)
        self._failure: Exception | None = None
        self._rounds = 0

    def window(self, shape: Sequence[int], dtype: torch.dtype) -> Window:
        """A new window of undefined contents. All ranks call it together, with equal shapes.

        Raises:
            WindowMemoryError: It does not fit on some rank. All ranks raise it, and keep nothing.
        """
        with torch.inference_mode(False):  # calls in training write to it too
            made = self._window(shape, dtype)
        tell_window(made, made.mine.nbytes)
        return made

    def slots(self, count: int) -> Slots:
        """Slots that no other living `Slots` object has, the same on all ranks. All ranks call it together."""
        return self._counters.slots(count)

    def restart(self, slots: Slots, most: int) -> None:
        """Begins a call anew: forgets posts of earlier calls that nobody has awaited, as after an error in a call.

        Pushes and posts come after everything that the current stream was given so far. All ranks begin the same calls,
        and post a slot to one peer `most` times at most.
        """
        self._counters.restart(slots, most)
        self._follow()

    def numbers(self, value: int) -> list[int]:
        """A number of each rank, 0 ≤ n < 2³¹, by their order. The host waits for all ranks, and no stream does."""
        self._check()
        self._rounds += 1
        # A peer is one round ahead at most. So the two columns take turns.
        column = MOST_SLOTS + self._rounds % 2
        for counts in self._counters.arrived:
            counts[self.index, column] = self._rounds << 31 | value
        begin = time.monotonic()
        mine = self._counters.arrived[self.index][:, column]
        while (late := np.flatnonzero(mine >> 31 < self._rounds)).size:
            if time.monotonic() - begin > self.deadline:
                self._failure = self._late(int(late[0]), "its next call")
                raise self._failure
            time.sleep(_PAUSE / 20)
        return [int(each) & (1 << 31) - 1 for each in mine]

    def send(self, index: int, moves: Moves, slot: int, *, early: bool = False) -> None:
        """Begins to copy tensors into a peer's window, and posts a slot after them. Copies of few long runs are
        fastest.

        The sources must not change before the current stream has waited for `joined`. The link holds them until then.
        Sources that were complete at `restart` are `early`: the copies need not wait for the kernels that the current
        stream was given since, and begin beside them.
        """
        self._check()
        moves = [(into, source) for into, source in moves if into.numel()]
        if is_watched():
            for into, source in moves:
                tell(Push(source, index != self.index, partial(self._again, index, into), self.joined))
        if not early:
            self._follow()
        with pushing():
            for into, source in moves:
                self._push(index, into, source)
        self._post(index, slot, self._counters.post(index, slot))

    def copy(self, moves: Moves) -> None:
        """Copies rows within this rank's memory, in the order of the current stream.

        The rank's earlier calls on this stream have read the window's earlier rows.
        """
        with torch.no_grad():
            for into, source in moves:
                copy_words(into, source)

    def post(self, index: int, slot: int, *, early: bool = False) -> None:
        """Tells a peer that a slot is ready, after all that was sent to it. See `send` for `early`."""
        self._check()
        if not early:
            self._follow()
        self._post(index, slot, self._counters.post(index, slot))

    def expect(self, index: int, slot: int, what: str = "rows", *, pushes: bool = False) -> None:
        """Makes kernels, or pushes, wait until a peer has posted a slot once more. On a CPU the host waits.

        A peer that does not post within the deadline makes it raise `PeerError`. With CUDA, a later call on the link
        raises it.
        """
        self._check()
        self._expect(index, slot, self._counters.expect(index, slot), what, pushes)

    @property
    def peers(self) -> list[int]:
        """The places of the other ranks. The next one comes first, so that ranks push to different peers."""
        return [(self.index + step) % self.size for step in range(1, self.size)]

    @abstractmethod
    def joined(self) -> None:
        """Makes the current stream wait for this rank's pushes and posts. Their sources may change."""

    def trial(self) -> str | None:
        """Moves a few bytes to each peer and back, on all ranks together. Why they did not arrive, or None."""
        window, slots = self.window((self.size, 4, 64), torch.int32), self.slots(1)
        for peer in range(self.size):
            sent = torch.full((4, 32), 1 + self.index, dtype=torch.int32, device=self.device)
            self.send(peer, [(window.of(peer)[self.index, :, :32], sent)], slots[0])
        end = time.monotonic() + min(_TRIAL, self.deadline)
        for peer in range(self.size):
            while self._counters.missing(peer, slots[0], slots.level + 1):
                if time.monotonic() > end:
                    return f"nothing came from rank {self._ranks[peer]} in a trial"
                time.sleep(_PAUSE)
            self.expect(peer, slots[0])
        self.joined()
        came = window.mine[:, :, :32].cpu()
        wanted = torch.arange(1, 1 + self.size, dtype=torch.int32)[:, None, None].expand_as(came)
        return None if torch.equal(came, wanted) else "other bytes came than were sent in a trial"

    def _again(self, index: int, into: Tensor, source: Tensor) -> None:
        """Pushes a tensor to a place once more, without a post."""
        self._follow()
        self._push(index, into, source)

    @abstractmethod
    def _window(self, shape: Sequence[int], dtype: torch.dtype) -> Window: ...

    @abstractmethod
    def _follow(self) -> None:
        """Lets later pushes and posts come after everything that the current stream was given."""

    @abstractmethod
    def _push(self, index: int, into: Tensor, source: Tensor) -> None: ...

    @abstractmethod
    def _post(self, index: int, slot: int, count: int) -> None: ...

    @abstractmethod
    def _expect(self, index: int, slot: int, count: int, what: str, pushes: bool) -> None: ...

    def _late(self, index: int, what: str) -> PeerError:
        """The error about a peer that has not posted, after which the link has failed."""
        peer = self._ranks[index]
        return PeerError(
            f"rank {self._ranks[self.index]} waited {self.deadline:g} s for {what} of rank {peer}, which did not come. "
            f"The process of rank {peer} has ended, hangs, makes another call or waits for another rank; see what it "
            "printed last"
        )

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def _timeout(group: dist.ProcessGroup, device: torch.device) -> float:
    """Seconds that operations of a group may take."""
    options = getattr(group._get_backend(device), "options", None)
    timeout: timedelta = getattr(options, "_timeout", dist.constants.default_pg_timeout)
    return timeout.total_seconds()
