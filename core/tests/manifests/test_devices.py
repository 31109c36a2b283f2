import sys
import types

import pytest

from longca.manifests import devices


class FakeNvml(types.ModuleType):
    """Two GPUs."""

    class NVMLError(Exception):
        """The error of pynvml."""

    def __init__(self, driver=True):
        super().__init__("pynvml")
        self.driver, self.open = driver, 0

    def nvmlInit(self):
        if not self.driver:
            raise self.NVMLError("no driver")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        if index > 1:
            raise self.NVMLError("no such device")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return self.nvmlDeviceGetHandleByIndex({"GPU-b": 1}.get(uuid, 9))

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return [(8, 0), (9, 0)][handle]

    def nvmlDeviceGetMemoryInfo(self, handle):
        return types.SimpleNamespace(total=(handle + 1) * 2**30)

    def nvmlDeviceGetName(self, handle):
        return ["NVIDIA A100", "NVIDIA H200"][handle]

    def nvmlSystemGetDriverVersion(self):
        return "580.1"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    caches = (devices.current_device, devices.cuda_devices, devices.cpu_device, devices.driver_version)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(devices, "installed_version", lambda name: "2.11.0")
    return fake


def test_the_first_gpu_is_the_current_device(nvml):
    device = devices.current_device()
    assert (device.kind, device.capability, device.memory, device.name) == ("cuda", (8, 0), 2**30, "NVIDIA A100")
    assert devices.driver_version() == "580.1"
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("visible", "names"), [("1,0", ["H200", "A100"]), ("GPU-b", ["H200"]), ("", []), ("0,7,1", ["A100"])]
)
def test_cuda_visible_devices_is_obeyed(nvml, monkeypatch, visible, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [device.name.split()[1] for device in devices.cuda_devices()] == names


def test_a_cpu_build_of_torch_uses_no_gpu(nvml, monkeypatch):
    monkeypatch.setattr(devices, "installed_version", lambda name: "2.11.0+cpu")
    assert devices.current_device().kind == "cpu"


@pytest.mark.parametrize("module", [None, FakeNvml(driver=False)])
def test_without_a_driver_there_is_the_cpu(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    device = devices.current_device()
    assert device.kind == "cpu"
    assert device.name
    assert device.memory > 2**20
    assert devices.driver_version() is None
