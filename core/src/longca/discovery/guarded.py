"""Plugins that this process never imports: manifests from a probe's answer, and hooks asked in another process.

The command line asks plugins this way. A hook that hangs, ends its process or changes a module does it no harm.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Any

from longca import errors
from longca.discovery.admission import Admission, HookError
from longca.discovery.candidates import Candidate
from longca.discovery.functions import BrokenFunctionError, check_returned, from_plain
from longca.discovery.hosting import HookHost, HostError
from longca.discovery.probe_cache import Answer, remember
from longca.discovery.probing import introduction
from longca.discovery.sample_problem import sample_problem
from longca.errors import LongCAError
from longca.manifests import Layout, Manifest, Problem, Reason
from longca.masks import Pattern, SliceMask
from longca.plain_text import plain_text

__all__ = ["HOOK_SECONDS", "Guarded"]

#: Seconds that a hook, or a function of a manifest, may take.
HOOK_SECONDS = 5.0
#: Seconds that a plugin's answers may take together beyond those that a problem or a call of a function has for free. A
#: command may ask thousands of times, and most answers take a millisecond.
_SPARE_SECONDS, _FREE_PROBLEM, _FREE_CALL = 15.0, 0.1, 2.0
_PROBLEMS_AT_ONCE = 32
#: Verdicts and layouts that are kept.
_MOST_KNOWN, _MOST_LAYOUTS = 10_000, 32
#: Bytes of the longest answer: a layout of thousands of ranks.
_MOST_BYTES = 2**28


class Guarded(Admission):
    """A plugin that runs in a process of its own. The process starts at the first question, and answers one at a time.

    Args:
        candidate: The plugin.
        answer: The answer of its probe.
    """

    def __init__(self, candidate: Candidate, answer: Answer) -> None:
        super().__init__(candidate.distribution, answer.problems)
        self.kernels, self.strategies = list(answer.kernels), list(answer.strategies)
        self._candidate, self._answer = candidate, answer
        self._host: HookHost | None = None
        self._imported = False
        self._broken = ""
        self._slow = 0.0  # seconds beyond the free ones
        self._known: dict[Hashable, tuple[Reason, ...]] = {}
        self._layouts: OrderedDict[Hashable, Layout] = OrderedDict()
        self._lock = threading.RLock()  # a run on several devices asks from several threads

    @property
    def can_veto(self) -> bool:
        """Whether the plugin implements the hook that can refuse a problem."""
        return self._answer.can_veto

    def ask_veto(self, kernel: str, problems: Iterable[Problem]) -> tuple[Reason, ...]:
        """The plugin's reasons against the first problem that it refuses.

        Raises:
            HookError: The hook fails, or gives no answer in time.
        """
        waiting = iter(problems)
        while some := list(islice(waiting, _PROBLEMS_AT_ONCE)):
            # A listing asks about the same steps of many layouts.
            known = [((kernel, _content(problem)), problem) for problem in some]
            with self._lock:
                refusal = next((i for i, (key, _) in enumerate(known) if self._known.get(key)), len(known))
                self._learn(kernel, {key: problem for key, problem in known[:refusal] if key not in self._known})
                reasons = next(filter(None, (self._known.get(key) for key, _ in known)), ())
            if reasons:
                return reasons
        return ()

    def _learn(self, kernel: str, asked: dict[Hashable, Problem]) -> None:
        """Asks for the reasons against problems, up to the first that is refused, and keeps them."""
        if not asked:
            return
        reply = self._ask(("veto", (kernel, list(asked.values()))), "its supports_mask", len(asked) * _FREE_PROBLEM)
        if "failed" in reply:
            raise HookError(plain_text(reply["failed"]))
        if "raised" in reply:
            raise HookError(f"its supports_mask raised {plain_text(reply.get('message'))}")
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        try:
            reasons = tuple(Reason(*(plain_text(text) for text in four)) for four in reply["reasons"])
            taken = list(asked)[: int(reply["taken"])] if reasons else list(asked)
        except (KeyError, TypeError, ValueError):
            raise HookError("its supports_mask gave an answer that cannot be read") from None
        self._known |= dict.fromkeys(taken, ())
        if reasons:
            self._known[list(asked)[min(len(taken), len(asked) - 1)]] = reasons

    def call(self, manifest: Any, field: str, arguments: tuple[Any, ...]) -> Any:
        """The result of a torch-free function that a field of a manifest names.

        Raises:
            LongCAError: The function raises it.
            BrokenFunctionError: The function raises anything else, gives no answer in time, or returns something else.
        """
        with self._lock:
            if field != "layout":
                return self._call(manifest, field, arguments)
            problem, axis_sizes, placement = arguments
            key = manifest.layout, _content(problem), tuple(sorted(axis_sizes.items())), placement
            if key not in self._layouts:
                self._layouts[key] = self._call(manifest, field, arguments)
                if len(self._layouts) > _MOST_LAYOUTS:
                    self._layouts.popitem(last=False)
            self._layouts.move_to_end(key)
            return self._layouts[key]

    def _call(self, manifest: Manifest, field: str, arguments: tuple[Any, ...]) -> Any:
        name = f"{getattr(manifest, field)} of plugin {self.distribution}"
        try:
            reply = self._ask(("call", (manifest, field, arguments)), getattr(manifest, field), _FREE_CALL, _MOST_BYTES)
        except HookError as error:
            raise BrokenFunctionError(f"{name} gave no answer: {error}") from None
        if "broken" in reply:
            raise BrokenFunctionError(plain_text(reply["broken"]))
        if "raised" in reply:
            raise _error(name, reply)
        try:
            return check_returned(field, from_plain(field, reply.get("value")), name)
        except (ValueError, TypeError) as error:
            raise BrokenFunctionError(f"{name} returned something that cannot be used: {plain_text(error)}") from None

    def start(self) -> None:
        """Starts the plugin's process, if it does not run. The process imports the plugin.

        Raises:
            HookError: It was started and failed.
        """
        if self._broken:
            raise HookError(self._broken)
        if self._host is None:
            # The probe's import may have waited for a disk whose files the second finds in memory.
            seconds = HOOK_SECONDS + 2 * self._answer.seconds
            try:
                self._host, self._imported = HookHost(self._candidate, seconds, "its second import"), False
            except OSError as error:
                raise self._break(f"no process could be started for it: {error.strerror}") from None

    def examine(self) -> tuple[list[str], list[str]]:
        """Problems and warnings that a second import and questions to the hooks show."""
        try:
            for manifest in self.kernels if self.can_veto else ():
                if (problem := sample_problem(manifest)) is not None:
                    self.ask_veto(manifest.name, (problem,))
            names = self._ask(("replaced", ()), "a look at its process", _FREE_CALL).get("replaced")
        except HookError as error:
            return [str(error)], []
        if not isinstance(names, list) or not names:
            return [], []
        return [], [f"it replaces {plain_text(', '.join(map(plain_text, names)))} when its hooks run"]

    @property
    def broken(self) -> str:
        """The reason why it is not asked again, as a clause. Empty if its process did not fail."""
        return self._broken

    def _await_import(self) -> HookHost:
        self.start()
        assert self._host is not None, "it was started"
        answer = None
        while not self._imported and answer is None:
            answer = introduction(self._host, 0.05)
        if answer is not None and answer.problem:
            self._host.close()
            # The next command does not wait for it again.
            remember(self._candidate, answer)
            raise self._break(answer.problem)
        self._imported = True
        return self._host

    def _break(self, why: str) -> HookError:
        """Marks the plugin, which is not asked again."""
        self._host, self._broken = None, why
        return HookError(why)

    def _ask(self, request: tuple[str, tuple[Any, ...]], doing: str, free: float, most: int = 2**20) -> dict[str, Any]:
        host = self._await_import()
        try:
            reply = host.ask(request, HOOK_SECONDS, doing, most)
        except HostError as error:
            raise self._break(plain_text(error)) from None
        self._slow += max(0.0, host.took - free)
        if self._slow > _SPARE_SECONDS:
            host.close()
            self._break(f"its answers took {self._slow:.0f} s too long together, so it is not asked again")
        if not isinstance(reply, dict):
            raise HookError(f"{doing} gave an answer that cannot be read")
        return reply


def _content(problem: Problem) -> Hashable:
    """A key that only problems of equal content share."""
    mask: Any = problem.mask
    if isinstance(mask, Pattern):
        return problem.settings, mask.name
    if type(mask) is not SliceMask:
        return problem.settings, getattr(mask, "key", object())
    parts = (mask.seqlen_q, mask.seqlen_k, mask.pattern, dict(mask.factors), mask.array.tobytes())
    return problem.settings, hashlib.blake2b(pickle.dumps(parts), digest_size=16).digest()


def _error(name: str, reply: dict[str, Any]) -> LongCAError:
    message, kind = plain_text(reply.get("message", "")), getattr(errors, plain_text(reply["raised"]), None)
    if isinstance(kind, type) and issubclass(kind, LongCAError) and kind.__init__ is LongCAError.__init__:
        return kind(message)
    return BrokenFunctionError(f"{name} raised {message}")
