"""Plugins whose hooks do harm, in real processes: each is refused by name, and every command works."""

import json
import time
from pathlib import Path
from textwrap import indent

import pytest

from .fake_plugins import NO, STRATEGY, VETO, WORKS, FakePlugins, provides

#: Code that runs from the second import on.
SECOND = """
import pathlib
mark = pathlib.Path(__file__).with_suffix(".imported")
if mark.exists():
    {body}
mark.touch()
"""
HANG = "while True: pass"
ODD = """
class Odd:
    def __getattribute__(self, name): raise SystemExit(0)
    __str__ = __repr__ = __eq__ = __bool__ = __len__ = __iter__ = __getattribute__
"""
LONG = 'Verdict(kernel, None, (Reason("plugin", "\\x1b[31m\\ud800" + "x" * 10_000_000, "no", "a\\u2028b"),) * 3)'
ENDLESS = "Verdict(kernel, None, iter(lambda: Reason('plugin', 'a', 'b'), None))"

SHOUT = """
import os, struct
for number in range(3, 300):
    try: os.write(number, struct.pack("!Q", {size}) + {data})
    except OSError: pass
"""

#: What supports_mask does, and a part of the reason or of what `longca plugins` says.
HOOKS = {
    "hangs": (HANG, "its supports_mask did not end within 5 s"),
    "raises": ("raise BaseException('tired')", "its supports_mask raised BaseException: tired"),
    "interrupts": ("raise KeyboardInterrupt", "its supports_mask raised KeyboardInterrupt"),
    "exits": ("import sys; sys.exit(0)", "its supports_mask raised SystemExit: 0"),
    "os_exits": ("import os; os._exit(0)", "its supports_mask ended the process with status 0"),
    "crashes": ("import os; os.kill(os.getpid(), 11)", "its supports_mask was killed by SIGSEGV"),
    "closes": ("import os; os.closerange(3, 99)\nwhile True: pass", "closed its connection to this process"),
    "returns_odd": (f"{ODD}\nreturn Odd()", "its supports_mask raised SystemExit"),
    "returns_true": ("return True", "returned an object of type bool, not a Verdict or None"),
    "raises_odd": (f"{ODD}\nclass Error(Exception, Odd): pass\nraise Error()", "its supports_mask raised Error"),
    "shouts": (
        SHOUT.format(size="2**60", data="b''"),
        f"gave an answer of {2**60} bytes, and at most {2**20} are read",
    ),
    "nests": (SHOUT.format(size="2**16", data="b'[' * 2**16"), "gave an answer that cannot be read"),
    "counts": (SHOUT.format(size="5000", data="b'9' * 5000"), "gave an answer that cannot be read"),
    "lists": (SHOUT.format(size="2", data="b'[]'"), "gave an answer that cannot be read"),
    "reasons": (SHOUT.format(size="14", data="b'{\"reasons\": 7}'"), "gave an answer that cannot be read"),
    "floods": ("while True: print('x' * 10**6)", "its supports_mask did not end within 5 s"),
}
#: What supports_mask replaces before it takes a problem, and its name.
REPLACES = {
    "time": ("import time; time.perf_counter = lambda: 0.0", "time.perf_counter"),
    "builtins": ("import builtins; builtins.print = None", "builtins.print"),
    "longca": ("import longca.manifests.resolve as r; r.resolve_manifest = None", "longca.manifests.resolve"),
    "json": ("import json; json.loads = lambda _: {}", "json.loads"),
}
#: Asks a guarded registry about every kernel, and says whether this process is as before.
ASKS = """
import builtins, json, longca, sys, time
from longca import Device, Problem, masks
from longca.plugins import registry
before = time.perf_counter, builtins.print, json.loads
found = registry(guarded=True)
problem = Problem(mask=masks.build("causal", 64), heads_q=4, device=Device("cpu"))
said = {name: [str(reason) for reason in found.resolve(name, problem).reasons] for name in found.kernels}
assert (time.perf_counter, builtins.print, json.loads) == before
assert "torch" not in sys.modules
assert not [name for name in sys.modules if name.startswith("does_")]
print(json.dumps(said))
"""
#: Asks one plugin from several threads at once, as judges of several devices do.
TOGETHER = """
from concurrent.futures import ThreadPoolExecutor
from longca import Device, Problem, masks
from longca.plugins import registry
found = registry(guarded=True)
given = [(masks.build("causal", 64 + each), 2 + each % 2) for each in range(64)]
asked = [Problem(mask=mask, heads_q=heads, device=Device("cpu")) for mask, heads in given]
with ThreadPoolExecutor(4) as pool:
    verdicts = list(pool.map(lambda problem: found.resolve("honest", problem), asked))
print([problem.heads_q for problem, verdict in zip(asked, verdicts) if verdict] == [2] * 32)
"""
COMMANDS = {
    "list-capabilities": ("list-capabilities",),
    "why": ("list-capabilities", "--why", "honest", "causal"),
    "recommend": ("recommend", "causal", "--seqlen", "4096", "--device", "cpu"),
    "dry-run": ("run", "causal", "--seqlen", "64", "--dry-run"),
    "doctor": ("doctor", "--no-timing"),
    "plugins": ("plugins",),
    "show-mask": ("show-mask", "causal", "--seqlen", "64"),
    "show-layout": ("show-layout", "round", "--mask", "causal", "--ranks", "2"),
}


def hook(name, body):
    return provides(name) + VETO.format(body=indent(body, "    ").lstrip())


@pytest.fixture(scope="module")
def harmful(tmp_path_factory):
    """Plugins with harmful hooks, and an honest one."""
    fakes = FakePlugins(tmp_path_factory.mktemp("harmful"))
    for name, (body, _) in HOOKS.items():
        fakes.add(f"does-{name}", hook(name, body))
    for name, (body, _) in REPLACES.items():
        fakes.add(f"does-replace-{name}", hook(f"replaces_{name}", body))
    fakes.add("does-long", hook("long", f"return {LONG}"))
    fakes.add("does-endless", hook("endless", f"return {ENDLESS}"))
    fakes.add("honest", hook("honest", f"if problem.heads_q == 3: {NO}"))
    fakes.add("rounds", STRATEGY)
    fakes.add("works", WORKS)
    return fakes


@pytest.fixture(scope="module")
def asked(harmful):
    """The reasons of a guarded registry against each kernel."""
    ran = harmful.python("-c", ASKS)
    assert (ran.returncode, ran.stderr) == (0, "")
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def listed(harmful):
    return harmful.plugins()


@pytest.mark.parametrize("name", HOOKS)
def test_a_harmful_hook_is_a_reason_that_names_the_plugin(asked, name):
    (reason,) = asked[name]
    assert f"{name}'s plugin does-{name} could not say whether it takes this" in reason
    assert HOOKS[name][1] in reason


@pytest.mark.parametrize("name", HOOKS)
def test_plugins_says_what_a_hook_does(listed, name):
    (problem,) = listed[f"does-{name}"]["problems"]
    assert HOOKS[name][1] in problem


@pytest.mark.parametrize("name", REPLACES)
def test_what_a_hook_replaces_is_said_and_stays_in_its_process(listed, asked, name):
    assert asked[f"replaces_{name}"] == []
    (warning,) = listed[f"does-replace-{name}"]["warnings"]
    assert f"it replaces {REPLACES[name][1]}" in warning


def test_reasons_are_bounded_and_printable(asked):
    assert len(asked["long"]) == 3
    assert all(len(reason) < 5000 and reason.isprintable() for reason in asked["long"])
    assert "no; \\x1b[31m\\ud800xxx" in asked["long"][0]
    assert len(asked["endless"]) == 20


def test_the_honest_are_not_concerned(listed, asked):
    assert asked["honest"] == asked["naive"] == []
    assert (listed["honest"]["kernels"], listed["honest"]["problems"]) == (["honest"], [])


def test_threads_ask_one_plugin_by_turns(fakes):
    fakes.add("honest", hook("honest", f"if problem.heads_q == 3: {NO}"))
    ran = fakes.python("-c", TOGETHER)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "True\n", "")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_works_beside_harmful_hooks(harmful, command):
    # One command is enough to wait for those that hang.
    quick = () if command == COMMANDS["list-capabilities"] else ("--no-plugin=does-hangs", "--no-plugin=does-floods")
    ran = harmful.longca(*quick, *command)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
def test_kernels_are_measured_and_verified_beside_harmful_hooks(harmful):
    harmful.measure("--no-plugin=does-hangs", "--no-plugin=does-floods")


SECONDS = {
    "hangs": (HANG, "its second import did not end within"),
    "os-exits": ("import os; os._exit(0)", "its second import ended the process with status 0"),
    "exits": ("raise SystemExit(0)", "its import raised SystemExit: 0"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SECONDS)
def test_a_second_import_that_does_harm_is_said(fakes, name):
    body, said = SECONDS[name]
    fakes.add("changes", SECOND.format(body=body) + hook("mine", "return None"))
    fakes.add("honest", provides("honest"))
    for _ in range(2):
        plugins = fakes.plugins()
        assert said in plugins["changes"]["problems"][0]
        assert plugins["changes"]["kernels"] == []
        assert plugins["honest"]["kernels"] == ["honest"]
    assert "mine" not in fakes.says("run", "causal", "--seqlen", "64", "--dry-run"), "it is not asked again"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_works_when_a_second_import_exits(fakes, command):
    fakes.add("changes", SECOND.format(body="import os; os._exit(0)") + hook("mine", "return None"))
    fakes.add("honest", provides("honest"))
    fakes.add("rounds", STRATEGY)
    assert fakes.longca(*command).returncode == 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_kernels_are_measured_when_a_second_import_exits(fakes):
    fakes.add("changes", SECOND.format(body="import os; os._exit(0)") + hook("mine", "return None"))
    fakes.add("works", WORKS)
    fakes.measure()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("where", ["import", "hook"])
def test_kernels_are_measured_beside_a_plugin_that_hangs(fakes, where):
    fakes.add("hangs", hook("mine", HANG) if where == "hook" else HANG)
    fakes.add("works", WORKS)
    fakes.env["LONGCA_PROBE_TIMEOUT"] = "2"
    fakes.measure()


def test_a_hang_is_waited_for_once_in_a_command(fakes):
    fakes.add("hangs", hook("mine", "open('asked', 'a').write('x')\n" + HANG))
    ran = fakes.longca("list-capabilities", "--kernel", "mine")
    assert (ran.returncode, ran.stderr) == (0, "plugin hangs: its supports_mask did not end within 5 s\n")
    assert (fakes.root / "asked").read_text() == "x"


def test_a_plugin_that_is_slow_each_time_is_named_and_not_asked_again(fakes):
    fakes.add("sleeps", hook("mine", "import time; time.sleep(4)\nopen('asked', 'a').write('x')"))
    started = time.monotonic()
    ran = fakes.longca("list-capabilities")
    assert time.monotonic() - started < 60
    assert (fakes.root / "asked").read_text() == "x" * 4
    assert (ran.returncode, ran.stderr) == (
        0,
        "plugin sleeps: its answers took 16 s too long together, so it is not asked again\n",
    )


#: What a strategy's layout function does, and a part of the refusal.
LAYOUTS = {
    "hangs": (HANG, "did not end within 5 s"),
    "raises": ("raise BaseException('tired')", "raised BaseException: tired"),
    "exits": ("import os; os._exit(0)", "ended the process with status 0"),
    "returns": ("return 'a' * 10**7", "returned a str"),
    "lies": ("return layout_of_nothing", "raised NameError"),
    "refuses": (
        "from longca.errors import UnsupportedError\n    raise UnsupportedError('no\\x1b ring')",
        "no\\x1b ring",
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_that_does_harm_is_refused(fakes, name):
    body, said = LAYOUTS[name]
    start, end = STRATEGY.index("    from longca import Layout"), STRATEGY.index("module.layout")
    fakes.add("rounds", STRATEGY[:start] + f"    {body}\n" + STRATEGY[end:])
    shown = fakes.longca("show-layout", "round", "--mask", "causal", "--ranks", "2")
    assert (shown.returncode, shown.stdout) == (2 if name == "refuses" else 1, "")
    assert said in shown.stderr
    assert shown.stderr.count("\n") == 1
    assert fakes.longca("recommend", "causal", "--seqlen", "4096", "--device", "h200", "--gpus", "2").returncode == 0


#: What a strategy's schedule function does, and a part of the refusal.
SCHEDULES = {
    "raises": ("1 / 0", "raised ZeroDivisionError: division by zero."),
    "exits": ("import os; os._exit(0)", "ended the process with status 0"),
    "returns": ("return (1, 2)", "returned a tuple"),
    "returns-odd": ("import longca.manifests.schedule as s; return (s.Phase(step='x' * 99),)", "cannot be used"),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_strategy_with_a_harmful_schedule_is_not_ranked(fakes, name):
    body, said = SCHEDULES[name]
    layout = 'layout="round_strategy:layout"'
    folder = fakes.add("rounds", STRATEGY.replace(layout, f'{layout}, schedule="rounds_schedule:of"'))
    (folder / "rounds_schedule.py").write_text(f"def of(*_):\n    {body}\n")
    about = ("--seqlen", "64", "--heads", "4:4", "--device", "h200", "--gpus", "2", "--strategy", "round")
    shown = " ".join(fakes.says("recommend", "causal", *about).split())
    assert "Not ranked: round: rounds_schedule:of of plugin rounds" in shown
    assert said in shown


#: A program that asks a plugin whose process has a child, and is then killed.
KILLED = """
import os
from longca import Device, Problem, masks
from longca.plugins import registry
problem = Problem(mask=masks.build("causal", 64), heads_q=4, device=Device("cpu"))
assert registry(guarded=True).resolve("mine", problem).valid
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("then", ["", HANG], ids=["done", "hanging"])
def test_no_process_of_a_session_of_its_own_outlives_a_command(fakes, then):
    starts = "import os, subprocess\nchild = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    fakes.add("starts", hook("mine", f"{starts}open('pid', 'w').write(str(child.pid))\n{then}"))
    assert fakes.python("-c", ASKS).returncode == 0
    assert not runs((fakes.root / "pid").read_text())


def test_no_process_outlives_a_program_that_is_killed(fakes):
    starts = "import os, subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
    fakes.add("starts", hook("mine", starts + "open('pids', 'w').write(f'{os.getpid()} {child.pid}')"))
    assert fakes.python("-c", KILLED).returncode == -9
    pids = (fakes.root / "pids").read_text().split()
    assert len(pids) == 2
    deadline = time.monotonic() + 60
    while any(map(runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(runs, pids))


def runs(pid):
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
