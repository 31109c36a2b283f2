"""Windows of a stream: the steps whose inputs, references and results are in memory at a time.

A window is as long as a device's free memory allows, because a process that takes all of it ends the others: PyTorch's
allocator and NCCL cannot take memory that another process only keeps. The first window is as short as possible. It
shows how many bytes a step has.
"""

from __future__ import annotations

from collections.abc import Iterator

from longca_bench.measuring.world import World

__all__ = ["LEAST", "WINDOW", "Windows"]

#: The most and the fewest steps of a window. A step is prefetched during the one before.
WINDOW, LEAST = 10, 2
#: The part of the free memory that a window and a worker's step may take. References and comparisons need the rest.
SHARE = 0.75


class Windows:
    """The windows of a stream, in order.

    Args:
        steps: Steps of the stream.
        world: The ranks. All of them go through the same windows.
    """

    def __init__(self, steps: int, world: World) -> None:
        self._steps, self._world, self._size = steps, world, LEAST

    def __iter__(self) -> Iterator[range]:
        first = 0
        while first < self._steps:
            window = range(first, min(first + self._size, self._steps))
            yield window
            first = window.stop

    def fit(self, step: int, fixed: int) -> None:
        """Chooses the length of the windows to come. All ranks call this when the memory of the last one is free.

        Args:
            step: Bytes of a step on this rank, in this process and in the worker.
            fixed: Bytes that the worker takes beside them, however many steps there are.
        """
        free = self._world.free_bytes()
        fits = (int(SHARE * free) - max(0, fixed)) // max(1, step)
        self._size = max(LEAST, min(WINDOW, *self._world.everyone(fits)))
