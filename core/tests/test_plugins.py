"""The registry: names, vetoes, loading. How plugins are found and imported is test_discovery's."""

import sys
from pathlib import Path

import pytest
import torch

import longca
from longca import masks, plugins
from longca.errors import (
    MissingPackageError,
    PluginError,
    RequestError,
    UnknownNameError,
    UnsupportedError,
)
from longca.manifests import Device, Layout, Problem, Step

from .fake_plugins import NO, VETO, provides


def problem(pattern="causal", **fields):
    return Problem(**{"mask": masks.build(pattern, 64), "heads_q": 4, "device": Device("cpu"), **fields})


def test_the_core_comes_first_then_by_distribution(open_registry):
    registry = open_registry(zeta=provides("a_kernel"), alpha=provides("z_kernel"))
    assert list(registry.kernels) == ["naive", "sdpa", "z_kernel", "a_kernel"]
    assert [plugin.distribution for plugin in registry.plugins if plugin.active] == ["longca-core", "alpha", "zeta"]
    assert registry.provider("a_kernel").distribution == "zeta"
    assert registry.provider("naive").name == "core"


def test_a_name_that_is_taken_stays_with_the_first(open_registry):
    registry = open_registry(beta=provides("same", title="of beta"), alpha=provides("same", title="of alpha"))
    assert registry.manifest("same").title == "of alpha"
    beta = next(plugin for plugin in registry.plugins if plugin.distribution == "beta")
    assert beta.problems == ["kernel 'same' of beta is left out: alpha provides one of that name"]


def test_unknown_names_say_what_is_near(open_registry):
    registry = open_registry()
    for ask in (registry.manifest, registry.provider, registry.load, lambda name: registry.resolve(name, problem())):
        with pytest.raises(UnknownNameError, match=r"unknown kernel 'sdpaa'\. Did you mean sdpa\?"):
            ask("sdpaa")
    with pytest.raises(UnknownNameError, match="unknown strategy 'ring'"):
        registry.strategy("ring")


def test_a_veto_is_heard_for_ones_own_kernels_alone(open_registry):
    registry = open_registry(vetoes=provides("mine") + VETO.format(body=NO), other=provides("other"))
    assert str(registry.resolve("mine", problem()).reasons[0]) == "mine takes no such mask; this one was asked."
    assert registry.resolve("other", problem()).valid
    assert registry.resolve("naive", problem()).valid


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("1 / 0", "its supports_mask raised ZeroDivisionError: division by zero"),
        ("raise SystemExit(4)", "its supports_mask raised SystemExit: 4"),
        ("return True", "its supports_mask returned an object of type bool, not a Verdict or None"),
        ("return 'no'", "its supports_mask returned an object of type str"),
    ],
)
def test_a_veto_that_breaks_is_a_reason(open_registry, body, said):
    (reason,) = open_registry(vetoes=provides("mine") + VETO.format(body=body)).resolve("mine", problem()).reasons
    assert reason.code == "plugin"
    assert said in str(reason)


def ring(seqlen=64):
    halves = (((0, seqlen // 2),), ((seqlen // 2, seqlen),))
    steps = tuple(tuple(Step(mine, theirs, (0, 4), (0, 4)) for theirs in halves) for mine in halves)
    return Layout(steps, halves)


def test_under_a_layout_each_step_that_shows_anything_is_asked(open_registry):
    code = "ASKED = []" + VETO.format(body="ASKED.append(problem.mask.label)")
    registry = open_registry(vetoes=provides("mine") + code)
    assert registry.resolve("mine", problem(), ring()).valid
    assert sys.modules["vetoes"].ASKED == ["mask of 32 tokens"] * 3, "rank 0 sees no key of rank 1's"


def load(open_registry, code, **fields):
    name = f"loads_{abs(hash(code))}"
    registry = open_registry(loads=provides("mine", implementation=f"{name}:Fake", **fields))
    if code is not None:
        path = sys.modules["loads"].__file__.rpartition("/")[0]
        with open(f"{path}/{name}.py", "w") as file:
            file.write(code)
    return registry


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (None, "ModuleNotFoundError: No module named"),
        ("class Other: pass", "AttributeError"),
        ("raise SystemExit(2)", "SystemExit: 2"),
        ("class Fake:\n    def __init__(self): raise RuntimeError('no GPU')", "RuntimeError: no GPU"),
        ("class Fake:\n    def __init__(self, needed): pass", "TypeError"),
    ],
)
def test_what_cannot_be_loaded_names_plugin_kernel_and_cause(open_registry, code, cause):
    registry = load(open_registry, code)
    with pytest.raises(PluginError, match="mine of plugin loads cannot be loaded") as caught:
        registry.load("mine")
    assert cause in str(caught.value)


def test_a_missing_package_comes_with_its_pip_line(open_registry):
    registry = load(open_registry, "import not_there", requires=("not-there>=2",))
    with pytest.raises(MissingPackageError, match=r"mine needs not-there>=2, .*: pip install 'not-there>=2'"):
        registry.load("mine")


def test_a_pair_is_asked_for_by_its_name(open_registry):
    registry = open_registry(plain=provides("plain"))
    assert [manifest.name for manifest in registry.manifests("naive+plain")] == ["naive", "plain"]
    assert [manifest.name for manifest in registry.manifests("plain")] == ["plain"]
    assert [plugin.distribution for plugin in registry.providers("plain+naive")] == ["plain", "longca-core"]
    assert [plugin.distribution for plugin in registry.providers("sdpa+naive")] == ["longca-core"]
    for ask in (registry.manifest, registry.provider):
        with pytest.raises(RequestError, match="is a pair of kernels, each with a manifest; name naive or plain"):
            ask("naive+plain")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sdpaa+naive", r"unknown forward half 'sdpaa'\. Did you mean sdpa\?"),
        ("naive+sdpaa", r"unknown backward half 'sdpaa'\. Did you mean sdpa\?"),
        ("naive+sdpa+naive", "is no pair; name two kernels"),
        ("sdpa+sdpa", "pairs a kernel with itself; name it once: sdpa"),
    ],
)
def test_what_is_no_pair_is_refused(open_registry, name, said):
    registry = open_registry()
    for ask in (registry.manifests, registry.load, lambda name: registry.resolve(name, problem())):
        with pytest.raises(RequestError, match=said):
            ask(name)


BOTH = """
ASKED = []

@hookimpl
def provide_kernel():
    return kernel("mine", *(offer(form, backward="external", unequal_lengths=True) for form in ("causal", "varlen")))
"""


def test_a_veto_is_put_to_a_half_with_its_own_problem(open_registry):
    body = f"ASKED.append(problem.backward_only)\n    if problem.backward_only: {NO}"
    registry = open_registry(vetoes=BOTH + VETO.format(body=body))
    asked = problem(direction="backward")
    assert registry.resolve("mine", asked).valid
    assert registry.resolve("mine+naive", asked, ring()).valid
    assert sys.modules["vetoes"].ASKED == [False] * 3, "steps that ask the same ask once"
    for layout in (None, ring()):
        (reason,) = registry.resolve("naive+mine", asked, layout).reasons
        assert str(reason) == "backward half: mine takes no such mask; this one was asked."
    assert registry.resolve("naive+mine", problem()).valid, "a forward is the first half's alone"


def test_under_a_layout_both_halves_take_every_step(open_registry):
    registry = open_registry(plain=provides("plain"), both=BOTH)
    asked = problem(direction="backward")
    found = registry.resolve("plain+mine", asked, ring())
    assert found.valid
    assert found.form == "causal, row_intervals + causal, varlen"
    reasons = registry.resolve("mine+plain", asked, ring()).reasons
    assert [reason.code for reason in reasons] == ["direction", "layout"]
    assert str(reasons[0]).startswith("backward half: plain has a forward alone")


HALVES = """
from longca_builtin.naive import Naive

LOADED = []

class Forward:
    def __init__(self): LOADED.append("forward")
    plan, forward = Naive.plan, Naive.forward

class Backward:
    def __init__(self): LOADED.append("backward")
    plan, backward = Naive.plan, Naive.backward
"""
PROVIDES_HALVES = """
@hookimpl
def provide_kernel():
    return [kernel("ahead", offer("row_intervals"), implementation="half_kernels:Forward"),
            kernel("back", offer("row_intervals", backward="external", forward=False),
                   implementation="half_kernels:Backward")]
"""


def test_a_forward_alone_and_a_backward_alone_are_trained_with(open_registry, monkeypatch):
    registry = open_registry(halves=PROVIDES_HALVES)
    folder = Path(sys.modules["halves"].__file__).parent
    (folder / "half_kernels.py").write_text(HALVES, "utf-8")
    monkeypatch.setattr(plugins, "registry", lambda *_: registry)
    mask = masks.build("causal", 64)
    q, k, v = (torch.randn(64, heads, 8, requires_grad=True) for heads in (4, 2, 2))

    def gradients(kernel):
        return torch.autograd.grad(longca.attention(q, k, v, mask, kernel=kernel).square().sum(), (q, k, v))

    with torch.no_grad():
        longca.attention(q, k, v, mask, kernel="ahead+back")
    assert sys.modules["half_kernels"].LOADED == ["forward"], "a forward does not need the other half"
    assert all(map(torch.equal, gradients("ahead+back"), gradients("naive")))
    assert registry.load("ahead+back") is registry.load("ahead+back")
    for alone, said in (("ahead", "ahead has a forward alone"), ("back", r"Pair it with .*: FORWARD\+back")):
        with pytest.raises(UnsupportedError, match=said):
            gradients(alone)


def test_strategies_and_their_layouts(rounds):
    assert list(rounds.strategies) == ["round"]
    assert rounds.load_strategy("round").__name__ == "Round"
    assert rounds.layout("round", problem(), {"ring": 2}).shards == (((0, 32),), ((32, 64),))
    with pytest.raises(UnsupportedError):
        rounds.layout("round", problem(), {"ring": 8})
    with pytest.raises(PluginError, match="returned a NoneType"):
        rounds.layout("round", problem(), {"ring": 3})
    with pytest.raises(PluginError, match="returned a layout of 1 ranks for a mesh of 4"):
        rounds.layout("round", problem(), {"ring": 4})
    with pytest.raises(RequestError, match=r"round was given axes .*; it needs a size of at least 1 for each of ring"):
        rounds.layout("round", problem(), {"ring": 2, "outer": 1})
    with pytest.raises(UnknownNameError, match=r"unknown placement of round 'strips'\. Did you mean stripes\?"):
        rounds.layout("round", problem(), {"ring": 2}, "strips")
