"""The conformance suite: every check, on every offer of every kernel of a plugin, as a pytest test.

A plugin's tests need two lines:

    from longca.testing import conformance

    test_conformance = conformance("longca-example")

A test id reads kernel-form-dtype-direction-check, as in `online-row_intervals-float32-backward-right`. The second offer
of a form is `full.2`. A check is skipped with the reason if a device or a package is missing.

Kernels run in workers, as under `longca verify`. A kernel that crashes or hangs fails its check, and no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from operator import attrgetter

from packaging.utils import canonicalize_name

from longca.errors import MissingPackageError, RequestError, UnknownNameError
from longca.manifests import Device
from longca.manifests.devices import current_device
from longca.manifests.pairs import split
from longca.plugins import PluginInfo, Registry, registry
from longca_bench.conformance.checks import CHECKS, hold
from longca_bench.conformance.isolation import Isolation
from longca_bench.conformance.offer_variant import NotApplicableError, offer_variants
from longca_bench.conformance.plugin_checks import admitted, light_import, loadable
from longca_bench.measuring.options import DEADLINE

__all__ = ["Check", "checks_of", "conformance"]


@dataclass(frozen=True)
class Check:
    """One check of one variant, of one kernel or of the plugin, with its test id and the kernel or distribution."""

    id: str
    owner: str
    name: str
    run: Callable[[], None]

    def is_meant(self, owner: str, pattern: str) -> bool:
        """Whether an expected failure means this check: its name or its id matches the glob."""
        return owner == self.owner and (fnmatchcase(self.name, pattern) or fnmatchcase(self.id, pattern))


def conformance(
    distribution: str | None = None,
    *,
    kernels: Iterable[str] | None = None,
    expected_failures: Mapping[tuple[str, str], str] | None = None,
    device: Device | None = None,
    isolated: bool = True,
    timeout: float = DEADLINE,
) -> Callable[[Check], None]:
    """A pytest test of whether kernels do as their manifests say. Assign it to a name that begins with `test_`.

    Args:
        distribution: The distribution of a plugin. The plugin itself and all its kernels are checked.
        kernels: Only these kernels, or pairs such as `fa3+fa4`. Without a distribution they may be of any plugin. With
            one, a half of each pair is the plugin's own.
        expected_failures: A reason for each (kernel, check) that is known to fail. The check is a name, a test id, or
            a glob of either. Such a check fails if it passes, because the reason is no longer true.
        device: The device. None takes this machine's GPU, or the CPU without a GPU.
        isolated: Whether kernels run in worker processes, as under `longca verify`. False runs them in the process of
            pytest, for a debugger or a measurement of coverage. Then a kernel that hangs or crashes ends the tests.
        timeout: Seconds that an isolated kernel may take for each problem.

    Raises:
        MissingPackageError: pytest is not installed.
        UnknownNameError: The plugin or a kernel is unknown.
        RequestError: Neither a distribution nor kernels were given, or an expected failure means no check.
    """
    try:
        import pytest
    except ImportError:
        raise MissingPackageError("pytest", "longca.testing.conformance", "pip install pytest") from None
    checks = list(checks_of(distribution, kernels, device, Isolation(isolated, timeout)))
    expected = dict(expected_failures or {})
    _refuse_stale(checks, expected)

    def test_conformance(check: Check) -> None:
        __tracebackhide__ = True
        try:
            check.run()
        except NotApplicableError as reason:
            pytest.skip(str(reason))

    parameters = []
    for check in checks:
        reasons = [reason for (owner, pattern), reason in expected.items() if check.is_meant(owner, pattern)]
        marks = [pytest.mark.xfail(reason=reason, strict=True) for reason in reasons[:1]]
        parameters.append(pytest.param(check, id=check.id, marks=marks))
    parametrized: Callable[[Check], None] = pytest.mark.parametrize("check", parameters)(test_conformance)
    return parametrized


def checks_of(
    distribution: str | None,
    kernels: Iterable[str] | None = None,
    device: Device | None = None,
    isolation: Isolation = Isolation(),
) -> Iterator[Check]:
    """Every check of a plugin and its kernels, or of some kernels alone. See `conformance`."""
    if distribution is None and kernels is None:
        raise RequestError('conformance needs a distribution, as in conformance("longca-example"), or kernels=[…]')
    everything, where = registry(), device or current_device()
    plugins = _plugins(everything, distribution) if distribution is not None else []
    for plugin in plugins:
        for check in (partial(admitted, plugin), partial(light_import, everything, plugin)):
            name = check.func.__name__
            yield Check(f"{plugin.distribution}-{name}", plugin.distribution, name, check)
    provided = [name for plugin in plugins for name in plugin.kernels]
    for kernel in provided if kernels is None else kernels:
        everything.manifests(kernel)
        if plugins and not set(split(kernel) or (kernel,)) & set(provided):
            raise UnknownNameError(f"kernel of {distribution}", kernel, provided)
        yield from _kernel_checks(everything, kernel, where, isolation)


def _kernel_checks(registry: Registry, kernel: str, device: Device, isolation: Isolation) -> Iterator[Check]:
    yield Check(f"{kernel}-loadable", kernel, "loadable", partial(loadable, registry, kernel, device, isolation))
    seen: Counter[str] = Counter()
    for offer, some in groupby(offer_variants(registry, kernel, device, isolation), key=attrgetter("offer")):
        seen[offer.form] += 1
        form = f"{offer.form}.{seen[offer.form]}" if seen[offer.form] > 1 else str(offer.form)
        for variant in some:
            about = f"{kernel}-{form}-{variant.dtype}-{variant.direction}"
            for name, check in CHECKS.items():
                yield Check(f"{about}-{name}", kernel, name, partial(hold, check, variant))


def _plugins(registry: Registry, distribution: str) -> list[PluginInfo]:
    """The entry points of a distribution."""
    wanted = canonicalize_name(distribution)
    found = [plugin for plugin in registry.plugins if canonicalize_name(plugin.distribution) == wanted]
    if not found:
        raise UnknownNameError("plugin", distribution, {plugin.distribution for plugin in registry.plugins})
    return found


def _refuse_stale(checks: list[Check], expected: Mapping[tuple[str, str], str]) -> None:
    for owner, pattern in expected:
        if not any(check.is_meant(owner, pattern) for check in checks):
            names = sorted({check.name for check in checks if check.owner == owner})
            known = f"checks of {owner}: {', '.join(names)}" if names else f"{owner} is not checked here"
            raise RequestError(f"the expected failure ({owner!r}, {pattern!r}) means no check here; {known}")
