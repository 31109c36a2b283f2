"""The core's own kernels conform, as every plugin's must."""

from longca.testing import conformance

test_conformance = conformance("longca-core")
