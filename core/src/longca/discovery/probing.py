"""Probing: each plugin without a cached answer is imported in a process of its own first, several at the same time.

A hang or an `os._exit` cannot be caught inside a process. The answer has the plugin's manifests, so the command
line needs no other process until it asks a hook.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from contextlib import suppress

from pydantic import ValidationError

from longca.discovery.candidates import Candidate
from longca.discovery.describing import describe
from longca.discovery.hosting import HookHost, HostError
from longca.discovery.probe_cache import Answer, recall, remember
from longca.errors import RequestError
from longca.plain_text import plain_text

__all__ = ["introduction", "probe_all"]

_TIMEOUT_S = 60.0
_AT_ONCE = max(4, os.cpu_count() or 1)


def probe_all(candidates: Iterable[Candidate], again: bool = False) -> dict[Candidate, Answer]:
    """Returns the import result of each plugin, from the cache or from a new probe.

    Args:
        candidates: The plugins.
        again: Whether to probe plugins again whose answers are cached.

    Raises:
        RequestError: LONGCA_PROBE_TIMEOUT is not a positive number of seconds.
    """
    answers = {c: None if again else recall(c) for c in candidates}
    unseen = [candidate for candidate, answer in answers.items() if answer is None]
    fresh = _probe_unseen(unseen) if unseen else {}
    return {candidate: answer or fresh[candidate] for candidate, answer in answers.items()}


def _probe_unseen(waiting: list[Candidate]) -> dict[Candidate, Answer]:
    timeout = _timeout()
    running: dict[Candidate, HookHost] = {}
    answers: dict[Candidate, Answer] = {}
    try:
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                candidate = waiting.pop()
                try:
                    running[candidate] = HookHost(candidate, timeout)
                except OSError as error:
                    answers[candidate] = Answer(problem=f"no process could be started to import it: {error.strerror}")
            for candidate, host in list(running.items()):
                if (answer := introduction(host)) is not None:
                    running.pop(candidate).close()
                    answers[candidate] = answer
                    remember(candidate, answer)
            time.sleep(0.002)
    finally:
        for host in running.values():
            host.close()
    return answers


def introduction(host: HookHost, wait: float = 0.0) -> Answer | None:
    """The first message of a plugin's process, or None if it did not come yet. A process that ends has a problem.

    Args:
        host: The process.
        wait: Seconds to wait for a part of it.
    """
    try:
        message = host.message(wait)
        return None if message is None else Answer.model_validate_json(message)
    except HostError as error:
        return Answer(problem=plain_text(error))
    except ValidationError as error:
        return Answer(problem=f"its manifests cannot be read: {describe(error)}")


def _timeout() -> float:
    text = os.environ.get("LONGCA_PROBE_TIMEOUT") or str(_TIMEOUT_S)
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise RequestError(f"LONGCA_PROBE_TIMEOUT is {text!r}; give a number of seconds above 0")
