"""Stand-ins: the measured GPUs that answer for a GPU without evidence, and the kernels that they are asked about."""

from longca import masks
from longca.manifests import Device, Problem
from longca_advice.devices import DEVICES
from longca_advice.evidence import Run
from longca_advice.history import CodeVerdict, append
from longca_advice.request import similar_gpus, trusted

from ..core_alone import core  # noqa: F401  # a fixture

H100, H200 = DEVICES["h100"], DEVICES["h200"]


def wrong(registry, kernel):
    """Notes that a kernel was found wrong on an H100."""
    its, run = registry.provider(kernel), Run(run="this machine", device=H100.name)
    append(
        CodeVerdict(
            kernel=kernel, version=f"{its.distribution} {its.version}", status="wrong", case="c", finished="", run=run
        )
    )


def test_the_device_itself_comes_first_and_a_cpu_has_no_other():
    first, *others = similar_gpus(H100)
    assert first is None
    assert next(gpu.name for gpu in others if gpu is not None) == H200.name
    assert similar_gpus(Device("cpu")) == [None]
    assert H200.name in {gpu.name for gpu in similar_gpus(DEVICES["h800"]) if gpu is not None}
    assert H200.name not in {gpu.name for gpu in similar_gpus(DEVICES["h20"]) if gpu is not None}, (
        "it is 7 times as fast"
    )


def test_a_kernel_that_was_found_wrong_is_trusted_only_if_no_other_is_left(core):  # noqa: F811
    problem = Problem(mask=masks.build("full", 64), heads_q=8, device=H100)
    assert trusted(problem, core, ["naive", "sdpa"]) == (["naive", "sdpa"], [])
    wrong(core, "sdpa")
    kernels, said = trusted(problem, core, ["naive", "sdpa"])
    assert kernels == ["naive"]
    assert said == ["sdpa is passed over: LongCA found this version of it wrong or suspect here"]
    assert trusted(problem, core, ["sdpa"])[0] == ["sdpa"]
