"""The conformance suite: every check, on every offer of every kernel of a plugin, as a pytest test.

In a plugin's tests, two lines are all of it:

    from longca.testing import conformance

    test_conformance = conformance("longca-example")

Test ids read kernel-form-dtype-direction-check, as in `online-row_intervals-float32-backward-right`; the second offer
of a form is `full.2`. What cannot run here, for want of a device or a package, is skipped with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from packaging.utils import canonicalize_name

from longca.errors import MissingPackageError, RequestError, UnknownNameError
from longca.manifests import Device
from longca.manifests.devices import current_device
from longca.plugins import PluginInfo, Registry, registry
from longca_bench.conformance.checks import CHECKS
from longca_bench.conformance.hygiene import KERNEL_CHECKS, PLUGIN_CHECKS
from longca_bench.conformance.offers import offered, verified_as
from longca_bench.conformance.subject import NotApplicableError, Subject

__all__ = ["Case", "cases_of", "conformance"]


@dataclass(frozen=True)
class Case:
    """One check of one subject.

    Attributes:
        id: How it reads in pytest.
        owner: The kernel, or for a plugin's own checks the distribution.
        check: The check's name.
        run: Makes the check.
    """

    id: str
    owner: str
    check: str
    run: Callable[[], None]

    def is_meant(self, owner: str, pattern: str) -> bool:
        """Whether an expected failure means it: by its check's name or its id, either of them a glob."""
        return owner == self.owner and (fnmatchcase(self.check, pattern) or fnmatchcase(self.id, pattern))


def conformance(
    distribution: str | None = None,
    *,
    kernels: Iterable[str] | None = None,
    expected_failures: Mapping[tuple[str, str], str] | None = None,
    device: Device | None = None,
) -> Callable[[Case], None]:
    """A pytest test that holds kernels to their manifests. Assign it to a name that begins with `test_`.

    Args:
        distribution: A plugin, by the name of its distribution: all of its kernels, and the plugin itself.
        kernels: Only these kernels, or pairs such as `fa3+fa4`; without a distribution, of any plugin.
        expected_failures: What is known to fail and why: (kernel, check) to a reason, where the check is its name, a
            test id, or a glob of either. A case of them that passes fails the test: the reason is no longer true.
        device: Where to run; None for this machine's GPU where it has one.

    Raises:
        MissingPackageError: pytest is not installed.
        UnknownNameError: No such plugin or kernel.
        RequestError: Nothing was asked for, or an expected failure means no check.
    """
    pytest = _pytest()
    cases = list(cases_of(distribution, kernels, device))
    expected = dict(expected_failures or {})
    _refuse_stale(cases, expected)

    def test_conformance(case: Case) -> None:
        __tracebackhide__ = True
        try:
            case.run()
        except NotApplicableError as reason:
            pytest.skip(str(reason))

    parameters = [_parameter(case, expected) for case in cases]
    parametrized: Callable[[Case], None] = pytest.mark.parametrize("case", parameters)(test_conformance)
    return parametrized


def cases_of(
    distribution: str | None, kernels: Iterable[str] | None = None, device: Device | None = None
) -> Iterator[Case]:
    """Every check of a plugin and its kernels, or of some kernels alone; the arguments are those of `conformance`.

    Raises:
        UnknownNameError: No such plugin or kernel.
        RequestError: Neither a distribution nor kernels were given.
    """
    if distribution is None and kernels is None:
        raise RequestError('conformance needs a distribution, as in conformance("longca-example"), or kernels=[…]')
    everything, where = registry(), device or current_device()
    plugins = _plugins(everything, distribution) if distribution is not None else []
    for plugin in plugins:
        for name, check in PLUGIN_CHECKS.items():
            yield Case(f"{plugin.distribution}-{name}", plugin.distribution, name, partial(check, everything, plugin))
    provided = [name for plugin in plugins for name in plugin.kernels]
    for kernel in provided if kernels is None else kernels:
        everything.manifests(kernel)
        if plugins and kernel not in provided:
            raise UnknownNameError(f"kernel of {distribution}", kernel, provided)
        yield from _kernel_cases(everything, kernel, where)


def _kernel_cases(registry: Registry, kernel: str, device: Device) -> Iterator[Case]:
    for name, examine in KERNEL_CHECKS.items():
        yield Case(f"{kernel}-{name}", kernel, name, partial(examine, registry, kernel))
    seen: Counter[str] = Counter()
    for offer, rows in groupby(offered(registry, kernel), key=itemgetter(0)):
        seen[offer.form] += 1
        form = f"{offer.form}.{seen[offer.form]}" if seen[offer.form] > 1 else str(offer.form)
        for _, dtype, direction in rows:
            subject = Subject(registry, verified_as(kernel, offer), offer, dtype, direction, device)
            for name, check in CHECKS.items():
                yield Case(f"{kernel}-{form}-{dtype}-{direction}-{name}", kernel, name, partial(check, subject))


def _plugins(registry: Registry, distribution: str) -> list[PluginInfo]:
    """The entry points of a distribution."""
    wanted = canonicalize_name(distribution)
    found = [plugin for plugin in registry.plugins if canonicalize_name(plugin.distribution) == wanted]
    if not found:
        raise UnknownNameError("plugin", distribution, {plugin.distribution for plugin in registry.plugins})
    return found


def _refuse_stale(cases: list[Case], expected: Mapping[tuple[str, str], str]) -> None:
    for owner, pattern in expected:
        if not any(case.is_meant(owner, pattern) for case in cases):
            checks = sorted({case.check for case in cases if case.owner == owner})
            known = f"checks of {owner}: {', '.join(checks)}" if checks else f"{owner} is not among what is checked"
            raise RequestError(f"the expected failure ({owner!r}, {pattern!r}) means no check here; {known}")


def _parameter(case: Case, expected: Mapping[tuple[str, str], str]) -> Any:
    pytest = _pytest()
    reasons = [reason for (owner, pattern), reason in expected.items() if case.is_meant(owner, pattern)]
    marks = [pytest.mark.xfail(reason=reason, strict=True) for reason in reasons[:1]]
    return pytest.param(case, id=case.id, marks=marks)


def _pytest() -> Any:
    try:
        import pytest
    except ImportError:
        raise MissingPackageError("pytest", "longca.testing.conformance", "pip install pytest") from None
    return pytest
