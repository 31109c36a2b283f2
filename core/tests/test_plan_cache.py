"""The rule of caches that depend on a mask."""

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from longca import masks
from longca.plan_cache import PlanCache


@pytest.fixture
def counting():
    """A cache of two entries, and a function that says whether an answer was made anew."""
    cache, made = PlanCache(2), []

    def ask(mask, about="x"):
        before = len(made)
        cache.get(mask, about, lambda: made.append(None))
        return len(made) > before

    return cache, ask


def test_masks_count_by_identity_and_not_by_value(counting):
    _, ask = counting
    mask, equal = masks.build("causal", 8), masks.build("causal", 8)
    assert mask == equal
    assert [ask(mask), ask(mask), ask(equal), ask(mask, "y")] == [True, False, True, True]


def test_the_entry_that_was_not_used_for_the_longest_time_goes(counting):
    cache, ask = counting
    assert [ask(1), ask(2), ask(1), ask(3), ask(1), ask(2)] == [True, True, False, True, False, True]
    assert len(cache) == cache.most
    cache.clear()
    assert len(cache) == 0


def test_a_key_does_not_hold_its_mask():
    cache, mask = PlanCache(2), masks.build("causal", 8)
    cache.get(mask, (), lambda: "an answer")
    alive = weakref.ref(mask)
    del mask
    gc.collect()
    assert alive() is None
    assert len(cache) == 1


def test_what_fails_is_not_kept(counting):
    cache, ask = counting
    with pytest.raises(ZeroDivisionError):
        cache.get(1, "x", lambda: 1 / 0)
    assert ask(1)


def test_caches_are_empty_before_the_process_ends():
    code = """
import atexit
from longca.plan_cache import PlanCache
class Held:
    def __del__(self): print("let go")
atexit.register(lambda: print("end"))
cache = PlanCache(2)
cache.get(1, "x", Held)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["let go", "end"]


def test_a_thread_waits_for_a_result_under_way():
    cache, made, go = PlanCache(2), [], threading.Event()

    def make():
        made.append(threading.current_thread())
        assert go.wait(60)
        return len(made)

    found = []
    threads = [threading.Thread(target=lambda: found.append(cache.get(1, "x", make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    assert (found, len(made)) == ([1] * 4, 1)
