"""The thread that looks at awaited posts: it gives up on the first that is late, and ends with its link."""

import gc
import threading

import pytest

from longca_cp.transports.copy_engine import Awaited, Watch


class Posts:
    """A link whose posts come as a test says."""

    def __init__(self, deadline):
        self.deadline, self.came, self.given_up, self.done = deadline, set(), [], threading.Event()

    def has_come(self, awaited):
        return awaited in self.came

    def give_up(self, awaited, others):
        self.given_up.append((awaited, others))
        self.done.set()


def awaited(slot):
    return Awaited(index=1, slot=slot, count=1, what="rows of a test")


def add(watch, *waits):
    with watch.lock:
        for each in waits:
            watch.add(each)


@pytest.fixture
def threads():
    before = set(threading.enumerate())
    return lambda: set(threading.enumerate()) - before


def test_the_first_late_post_is_given_up_with_those_behind_it(threads):
    link = Posts(deadline=0.3)
    watch = Watch(link)
    link.came.add(awaited(0))
    add(watch, awaited(0), awaited(1), awaited(2))
    assert link.done.wait(timeout=60)
    assert link.given_up == [(awaited(1), [awaited(1), awaited(2)])]
    watch.stop()
    for thread in threads():
        thread.join(timeout=60)
    assert not threads()


def test_the_thread_ends_with_its_link(threads):
    link = Posts(deadline=3600)
    watch = Watch(link)
    add(watch, awaited(0))
    (thread,) = threads()
    del link
    gc.collect()
    thread.join(timeout=60)
    assert not thread.is_alive()
