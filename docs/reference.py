"""Writes the reference tables of pages in place: `python docs/reference.py`.

The option `--check` writes nothing, names the stale blocks, and exits with 1 if there are any. A block stands between
two comments, and its name is that of a function of this module, which makes Markdown from the code:

    <!-- generated: patterns -->
    <!-- end -->

A test fails if a page has a stale block. `docs/tables.py` does the same for tables of measurements.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import in_place
import typer.main
import verified_records
from pydantic import BaseModel

DOCS = Path(__file__).resolve().parent
_BLOCK = re.compile(r"^<!-- generated: (?P<name>\w+) -->\n(?P<body>.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE)
_DEFAULT = re.compile(r" [\[(]default: (.*)[\])]$")
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_ENTRY = re.compile(r"(\w+)(?: \([^)]*\))?: (.*)")


def rewritten(page: str) -> str:
    """A page with today's text in its blocks."""
    return _BLOCK.sub(lambda found: f"<!-- generated: {found['name']} -->\n{_body(found['name'])}<!-- end -->", page)


def stale(page: str) -> list[str]:
    """The names of the blocks whose text is not today's."""
    return [found["name"] for found in _BLOCK.finditer(page) if found["body"] != _body(found["name"])]


def _body(name: str) -> str:
    return f"\n{GENERATED[name]().strip()}\n\n"


def attributes(kind: type) -> dict[str, str]:
    """The text of each entry under `Attributes:` in a class's docstring."""
    lines = (inspect.getdoc(kind) or "").splitlines()
    found: dict[str, str] = {}
    name = ""
    for line in lines[lines.index("Attributes:") + 1 :] if "Attributes:" in lines else ():
        if line and not line.startswith(" "):
            break
        text = line.strip()
        entry = _ENTRY.fullmatch(text) if len(line) - len(text) == 4 else None
        if entry:
            name = entry[1]
            found[name] = entry[2]
        elif text and name:
            found[name] += f" {text}"
    return found


def patterns() -> str:
    """The mask patterns and their factors."""
    from longca.masks import PATTERNS

    rows = [
        (f"`{p.name}`", ", ".join(f"`{f}`" for f in p.factors), p.summary, "yes" if p.rectangular else "")
        for p in PATTERNS.values()
    ]
    return _table(("pattern", "factors", "query i sees key j if", "Sq ≠ Sk"), rows)


def factors() -> str:
    """The meaning of each factor."""
    from longca.masks import FACTORS

    return _table(("factor", "meaning"), [(f"`{f.name}`", f.meaning) for f in FACTORS.values()])


def quick_suite() -> str:
    """The suite `quick`, as its file has it."""
    from importlib.resources import files

    text = files("longca_bench").joinpath("suites", "quick.toml").read_text(encoding="utf-8")
    return f"```toml\n{text}```"


def suite_fields() -> str:
    """The keys of a suite."""
    from longca_bench.suites.suite import Suite

    return _suite_table(Suite)


def sweep_fields() -> str:
    """The keys of a sweep."""
    from longca_bench.suites.suite import Sweep

    return _suite_table(Sweep)


def record_fields() -> str:
    """The fields of a record."""
    from longca_bench.measuring.records import Record

    said = attributes(Record)
    return _table(("field", "meaning"), [(f"`{name}`", said[name]) for name in Record.model_fields])


def statuses() -> str:
    """The statuses of a case."""
    from longca_bench.measuring.status import Status

    rows = [(f"`{s}`", s.meaning, s.advice.format(kernel="NAME"), str(s.exit_code)) for s in Status]
    return _table(("status", "meaning", "advice", "exit code"), rows)


def finding_fields() -> str:
    """The fields of a finding."""
    from longca_bench.verification.findings import Finding

    said = attributes(Finding)
    return _table(("field", "meaning"), [(f"`{f.name}`", said[f.name]) for f in dataclass_fields(Finding)])


def constants() -> str:
    """The constants of timing and verification."""
    from longca_bench.measuring import options, timing
    from longca_bench.verification import findings, head_sample, reference

    rows = [
        ("`timing.WARM`", timing.WARM, "warm-up ends when two calls in a row differ by less than this share"),
        ("`timing.WARM_UP`", timing.WARM_UP, "warm-up ends after this many calls at the latest"),
        ("`timing.SAMPLES`", " or ".join(map(str, timing.SAMPLES.values())), "most samples on a CPU or a CUDA device"),
        (
            "`timing.LOAD`",
            f"{timing.LOAD * 1e3:g}\N{NO-BREAK SPACE}ms",
            "a kernel's own calls before the inputs of a timed call on a CUDA device change",
        ),
        ("`timing.LONG`", f"{timing.LONG:g}\N{NO-BREAK SPACE}s", "a call of as long has none of these calls before it"),
        ("`timing.LEAST`", timing.LEAST, "samples that are taken at any cost"),
        ("`timing.BUDGET`", f"{timing.BUDGET}\N{NO-BREAK SPACE}s", "sampling stops when the samples add up to this"),
        (
            "`timing.LEAD`",
            f"{timing.LEAD * 1e3:g}\N{NO-BREAK SPACE}ms",
            "a CUDA device is busy for as long before a timed call",
        ),
        (
            "`options.DEADLINE`",
            f"{options.DEADLINE:g}\N{NO-BREAK SPACE}s",
            "a case's deadline, unless `--timeout` says otherwise",
        ),
        (
            "`reference.FLOAT64_PAIRS`",
            _power(reference.FLOAT64_PAIRS),
            "visible pairs over all heads above which the reference is in float32 instead of float64",
        ),
        (
            "`head_sample.SAMPLED_PAIRS`",
            _power(head_sample.SAMPLED_PAIRS),
            "pairs of all heads, hidden ones of block masks too, above which only some KV heads are verified",
        ),
        (
            "`findings.WIDE_ULPS`",
            f"{findings.WIDE_ULPS:g}",
            "ulps of float32 (float64) of a row's spread that always pass",
        ),
        ("`findings.HALF_ULPS`", f"{findings.HALF_ULPS:g}", "ulps of bfloat16 or float16 that pass in addition"),
    ]
    return _table(("constant", "value", "meaning"), [tuple(map(str, row)) for row in rows])


def function_arguments() -> str:
    """The parameters that a user's function may ask for."""
    from longca_bench.functions.arguments import Argument

    return _table(("parameter", "value"), [(f"`{each}`", each.meaning) for each in Argument])


def mistakes() -> str:
    """The mistakes of functions that are named."""
    from longca_bench.functions.mistakes import Mistake

    return _table(("mistake", "sentence"), [(f"`{each}`", each.says) for each in Mistake])


def verified_kernels() -> str:
    """The newest record of each verified kernel, and whether it is of today's code."""
    head = ("kernel or pair", "date (UTC)", "device", "versions", "code", "record")
    return _table(head, verified_records.table_rows())


def commands() -> str:
    """Every command, with its arguments and options."""
    from longca_bench.cli.app import app

    return "\n".join(_command(typer.main.get_command(app), "longca"))


def _command(command: Any, path: str) -> Iterator[str]:
    """A command, and the commands within it. `command` is click's, or typer's own copy of it."""
    level = "#" * (1 + len(path.split()))
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    arguments = [p for p in shown if p.param_type_name == "argument"]
    children = getattr(command, "commands", {})
    tail = ["COMMAND"] if children else [_argument(p) for p in arguments]
    yield f"{level} `{path}`\n"
    yield "\n\n".join(map(_escape, inspect.cleandoc(command.help or "").split("\n\n"))) + "\n"
    yield f"```text\n{' '.join((path, '[OPTIONS]', *tail))}\n```\n"
    rows = [(_names(p), *_default_and_help(p)) for p in shown]
    yield _table(("argument or option", "default", "meaning"), rows) + "\n"
    for name, child in children.items():
        yield from _command(child, f"{path} {name}")


def _argument(param: Any) -> str:
    name = str(param.name).upper() + ("…" if param.nargs == -1 or param.multiple else "")
    return name if param.required else f"[{name}]"


def _names(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{_argument(param)}`"
    value = "" if param.is_flag else f" {param.metavar or _metavar(param)}"
    return ", ".join(f"`{name}{value}`" for name in (*param.opts, *param.secondary_opts))


def _metavar(param: Any) -> str:
    kind = str(param.type_descriptor.annotation)
    return "N" if "int" in kind else "X" if "float" in kind else param.opts[0].lstrip("-").upper()


def _default_and_help(param: Any) -> tuple[str, str]:
    """The default and the rest of the help. The help describes a default that is no plain value in words."""
    text = " ".join((param.help or "").split())
    words = _DEFAULT.search(text)
    if param.required:
        default = "required"
    elif words:
        default = _escape(words[1])
    else:
        default = f"`{param.default}`" if isinstance(param.default, str | int | float | Path) else ""
        default = {"`False`": "", "`True`": "on"}.get(default, default)
    return default, _escape(_DEFAULT.sub("", text))


def _suite_table(model: type[BaseModel]) -> str:
    said = attributes(model)
    schema = model.model_json_schema()["properties"]
    rows = []
    for name, field in model.model_fields.items():
        default = f"`{json.dumps(field.get_default(call_default_factory=True), default=str)}`"
        rows.append((f"`{name}`", _json_type(schema[name]), "required" if field.is_required() else default, said[name]))
    return _table(("key", "value", "default", "meaning"), rows)


def _json_type(schema: dict[str, Any]) -> str:
    """A JSON schema in a few words. A reference leads to a separate table."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_json_type, schema["anyOf"])))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = "table" if "$ref" in schema else {"object": "table"}.get(schema["type"], schema["type"])
    if kind == "array":
        return f"list: {_json_type(schema['items'])}"
    if "minimum" in schema:
        kind += f" from {schema['minimum']}"
    if "maximum" in schema:
        kind += f" to {_power(schema['maximum'])}"
    return kind


def _power(number: int) -> str:
    for value, tail in ((number, ""), (number + 1, " − 1")):
        if value >= 2**16 and value & (value - 1) == 0:
            return f"2{str(value.bit_length() - 1).translate(_SUPERSCRIPT)}{tail}"
    return str(number)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head)]
    lines.append(["---"] * len(lines[0]))
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escape(text: str) -> str:
    """Escapes plain help text for Markdown, and marks options as code."""
    plain = re.sub(r"([*_<>\[\]])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![`\w])--[a-z][a-z-]*", r"`\g<0>`", plain)


GENERATED: dict[str, Callable[[], str]] = {
    function.__name__: function
    for function in (
        patterns,
        factors,
        quick_suite,
        suite_fields,
        sweep_fields,
        record_fields,
        statuses,
        finding_fields,
        constants,
        function_arguments,
        mistakes,
        verified_kernels,
        commands,
    )
}


def main(arguments: list[str]) -> int:
    """Writes the stale blocks of all pages, or only names them with `--check`. Returns the exit code."""
    return in_place.write(DOCS, sorted(DOCS.glob("*.md")), stale, rewritten, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
