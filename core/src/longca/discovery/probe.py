"""Imports one plugin and asks its hooks, so that whoever started this process learns whether it survives that.

`python -m longca.discovery.probe MODULE[:ATTRIBUTE]` writes one line of JSON to standard output: `error`, what was
raised while importing, or empty; `imports_torch`, whether torch was imported with it. All that the plugin prints goes
to standard error, and so does the traceback.
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
    except BaseException as caught:  # SystemExit is an answer too
        traceback.print_exc()
        error = f"{type(caught).__name__}: {caught}"
    else:
        # What the hooks return is judged where it is used; here they only have to come back.
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
