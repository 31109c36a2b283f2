from longca.manifests import Device
from longca.plugins import registry
from longca_bench.conformance.verify_jobs import verify_kernels


def about(checks):
    return [(c.offer, c.dtype, c.direction, c.passed, c.skipped, c.error, c.masks) for c in checks]


def test_side_by_side_as_one_after_the_other():
    found = registry()
    kernels = ["online", "sdpa"]
    alone = dict(verify_kernels(found, kernels[:1], Device("cpu")))
    together = dict(verify_kernels(found, kernels, Device("cpu"), jobs=2))
    assert list(together) == kernels
    assert about(together["online"]) == about(alone["online"])
    assert all(check.passed or check.skipped for checks in together.values() for check in checks)
