"""A process that imports one plugin and calls its hooks: the side of the plugin. `hosting` has the other side.

It first sends an `Answer`, and then answers each request with JSON, until the connection is closed. All
output of the plugin goes to the standard error of this process.

Where a fork is not safe, `python -P -m longca.discovery.hook_host FD SECONDS MODULE ATTRIBUTE DISTRIBUTION` starts it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import astuple
from types import ModuleType
from typing import Any, NoReturn

from longca import errors
from longca.discovery.admission import Admission, HookError, ask_hooks, import_plugin
from longca.discovery.describing import describe
from longca.discovery.functions import BrokenFunctionError, as_plain
from longca.discovery.probe_cache import Answer, SourceFile, stamp
from longca.discovery.wire import Reader, receive, send
from longca.errors import LongCAError
from longca.import_path import leave_working_folder
from longca.manifests import Problem
from longca.plain_text import plain_text, type_name
from longca.processes import adopt_orphans, end_all, wake_without_parent

__all__ = ["INSIDE", "serve"]

#: The variable that is set in this process.
INSIDE = "LONGCA_INSIDE_PROBE"
_MOST_FILES, _MOST_NAMES = 1000, 20
_Functions = dict[tuple[str, str], object]
_WATCHED = {"builtins", "json", "math", "numpy", "os", "random", "sys", "threading", "time", "torch"}


def serve(connection: socket.socket, grace: float, module: str, attr: str, distribution: str) -> NoReturn:
    """Imports a plugin, answers requests and ends the process.

    Args:
        connection: Socket to the process that asks.
        grace: Seconds after which the process ends if the import or a request has not ended.
        module: The module that the entry point names.
        attr: The object in the module, or an empty text.
        distribution: The plugin's distribution.
    """
    adopt_orphans()
    wake_without_parent()
    os.environ[INSIDE] = "1"
    leave_working_folder()
    sys.stdin = open(os.devnull)  # noqa: SIM115 - open until the process ends
    # A print must not wait in a buffer when the plugin ends the process.
    sys.stdout = sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    reader = Reader()
    original = _functions()
    signal.setitimer(signal.ITIMER_REAL, grace)
    try:
        answer, admission = _introduce(module, attr, distribution)
        send(connection, answer.model_dump_json().encode("utf-8"))
        signal.setitimer(signal.ITIMER_REAL, 0)
        while (request := receive(connection)) is not None:
            signal.setitimer(signal.ITIMER_REAL, grace)
            send(connection, json.dumps(_reply(admission, original, *reader.read(request))).encode("utf-8"))
            signal.setitimer(signal.ITIMER_REAL, 0)
        end_all((os.getpid(),))  # no process that the plugin started stays
        os.killpg(0, signal.SIGKILL)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _introduce(module: str, attr: str, distribution: str) -> tuple[Answer, Admission]:
    before, started = set(sys.modules), time.monotonic()
    try:
        plugin = import_plugin(module, attr)
    except BaseException as error:  # SystemExit counts as a failure too
        traceback.print_exc()
        admission = Admission(distribution)
        problem = f"its import raised {describe(error)}"
    else:
        admission, problem = ask_hooks(plugin, distribution), ""
    answer = Answer(
        problem=problem,
        imports_torch="torch" in sys.modules,
        can_veto=admission.can_veto,
        kernels=tuple(admission.kernels),
        strategies=tuple(admission.strategies),
        problems=tuple(map(plain_text, admission.problems)),
        seconds=time.monotonic() - started,
        files=tuple(_files(sys.modules[name] for name in sorted(set(sys.modules) - before)))[:_MOST_FILES],
    )
    return answer, admission


def _files(modules: Iterable[ModuleType]) -> Iterable[SourceFile]:
    """The files of imported modules. The many of torch are left out."""
    for module in modules:
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and module.__name__.partition(".")[0] != "torch" and (found := stamp(path)):
            yield found


def _reply(admission: Admission, original: _Functions, verb: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    try:
        if verb == "replaced":
            gone = [key for key, value in original.items() if vars(sys.modules[key[0]]).get(key[1]) is not value]
            return {"replaced": [f"{module}.{name}" for module, name in gone[:_MOST_NAMES]]}
        if verb == "veto":
            return _veto(admission, *arguments)
        return {"value": as_plain(arguments[1], admission.call(*arguments))}
    except HookError as error:
        return {"failed": plain_text(error)}
    except BrokenFunctionError as error:
        return {"broken": plain_text(error)}
    except BaseException as error:
        # The other side raises an error of LongCA that has a message alone. Any other error is the plugin's fault.
        known = isinstance(error, LongCAError) and getattr(errors, type_name(error), None) is type(error)
        return {"raised": type_name(error) if known else "", "message": plain_text(error if known else describe(error))}


def _functions() -> _Functions:
    """The functions and classes that a plugin has no reason to replace, by module and name."""
    watched = [name for name in sys.modules if name in _WATCHED or name.startswith("longca.")]
    return {(name, key): value for name in watched for key, value in vars(sys.modules[name]).items() if callable(value)}


def _veto(admission: Admission, kernel: str, problems: list[Problem]) -> dict[str, Any]:
    """The reasons against the first problem that is refused, and the number of problems that are taken before it."""
    for taken, problem in enumerate(problems):
        if reasons := admission.ask_veto(kernel, (problem,)):
            return {"taken": taken, "reasons": [astuple(reason) for reason in reasons]}
    return {"taken": len(problems), "reasons": []}


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2]), *sys.argv[3:6])
