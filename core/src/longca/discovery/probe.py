"""Imports one plugin and calls its hooks, so that the parent process learns whether the plugin survives both.

`python -m longca.discovery.probe MODULE[:ATTRIBUTE]` writes one line of JSON to standard output. `error` is the
exception of the import, or empty. `imports_torch` says whether the import imported torch. All output of the plugin and
the traceback go to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from longca.discovery.admission import ask_hooks, import_plugin

__all__: list[str] = []


def _probe(target: str) -> dict[str, object]:
    module, _, attr = target.partition(":")
    error = ""
    try:
        plugin = import_plugin(module, attr)
    except BaseException as caught:  # SystemExit counts as a failure too
        traceback.print_exc()
        error = f"{type(caught).__name__}: {caught}"
    else:
        # The hooks only have to return here. `admission` judges the returned values.
        ask_hooks(plugin, module)
    return {"error": error, "imports_torch": "torch" in sys.modules}


def _main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m longca.discovery.probe MODULE[:ATTRIBUTE]")
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        answer.write(json.dumps(_probe(sys.argv[1])) + "\n")


if __name__ == "__main__":
    _main()
