"""Fake plugins."""

import sys

import pytest

from longca.plugins import Registry

from .fake_plugins import NO, STRATEGY, VETO, FakePlugins, provides


@pytest.fixture
def fakes(tmp_path):
    """Temporary distributions and a Python that sees them, with a cache folder of their own."""
    return FakePlugins(tmp_path)


@pytest.fixture
def open_registry(fakes, monkeypatch, tmp_path):
    """Adds plugins and opens a registry that sees them, the core, and nothing else that is installed."""

    def opened(**codes):
        monkeypatch.setenv("LONGCA_PLUGINS", ",".join(codes))
        for name, code in codes.items():
            monkeypatch.syspath_prepend(fakes.add(name, code))
        return Registry()

    before = set(sys.modules)
    yield opened
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in sys.modules[name].__file__:
            del sys.modules[name]


@pytest.fixture
def rounds(open_registry):
    """A registry with a strategy, a plain kernel, and one that refuses steps of other lengths."""
    fussy = provides("fussy") + VETO.format(body=f"if problem.mask.seqlen_q != problem.mask.seqlen_k: {NO}")
    yield open_registry(rounds=STRATEGY, plain=provides("plain"), fussy=fussy)
    sys.modules.pop("round_strategy", None)
