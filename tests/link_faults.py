"""Strategies that go wrong on a link of ranks, in forwards alone. So the case after each shows what it has left."""

import os
import time

import torch

from longca_cp.ring_p2p import RingP2P


class Faulty(RingP2P):
    """Pushes a part of its first rows on rank 1, and runs a method of its own in place of the others."""

    def plan(self, problem, layout, kernel):
        self._is_due = problem.direction == "forward"
        return super().plan(problem, layout, kernel)

    def forward(self, *arguments, **buffers):
        if self._is_due and os.environ["RANK"] == "1":
            link = self._axis.link

            def push(index, into, source):
                type(link)._push(link, index, into[:1], source[:1])
                self.fail()

            link._push = push
        return super().forward(*arguments, **buffers)


class DiesPushing(Faulty):
    def fail(self):
        os._exit(7)


class HangsPushing(Faulty):
    def fail(self):
        time.sleep(3600)


class RaisesPushing(Faulty):
    def fail(self):
        raise RuntimeError("the copy engine is on strike")


class TakesLargeWindow(RingP2P):
    """Asks for a window that does not fit, while it holds another one."""

    def plan(self, problem, layout, kernel):
        if problem.direction == "forward":
            self._held = self._axis.link.window((2**20,), torch.uint8)
            self._axis.link.window((2**50,), torch.uint8)
        return super().plan(problem, layout, kernel)
