"""Devices that can be asked about without having one: their names, compute capabilities, memory and peak rates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from longca.errors import RequestError
from longca.manifests import Device
from longca.manifests.devices import cpu_device, current_device

__all__ = [
    "DEVICES",
    "NO_DEVICE_REACHES",
    "PEAKS",
    "RESERVED",
    "Capacity",
    "evidence_name",
    "named_device",
    "peak_tflops",
]

_GB = 10**9

#: Words of a name that make no other GPU of it. A PCIe card is slower than the module of the same name.
_SOCKET = re.compile(r"sxm\d?|nvl\d+|hbm\d?e?")


def _gpu(name: str, capability: tuple[int, int], memory: int) -> Device:
    return Device("cuda", capability, memory, name)


#: GPUs by their common names. Memory is the driver's figure if one was seen, else the vendor's.
#: Sources: NVIDIA's data sheets, and its table of compute capabilities (developer.nvidia.com/cuda-gpus). A800, H800 and
#: H20 are not in that table, and have the dies of A100 and H100.
DEVICES: Mapping[str, Device] = {
    "v100": _gpu("Tesla V100-SXM2-32GB", (7, 0), 32 * _GB),
    "a100": _gpu("NVIDIA A100-SXM4-80GB", (8, 0), 80 * _GB),
    "a100-40gb": _gpu("NVIDIA A100-SXM4-40GB", (8, 0), 40 * _GB),
    "a800": _gpu("NVIDIA A800-SXM4-80GB", (8, 0), 80 * _GB),
    "a10": _gpu("NVIDIA A10", (8, 6), 24 * _GB),
    "a100-pcie": _gpu("NVIDIA A100 80GB PCIe", (8, 0), 80 * _GB),
    "a100-pcie-40gb": _gpu("NVIDIA A100-PCIE-40GB", (8, 0), 40 * _GB),
    "a40": _gpu("NVIDIA A40", (8, 6), 48 * _GB),
    "rtx3090": _gpu("NVIDIA GeForce RTX 3090", (8, 6), 24 * _GB),
    "a6000": _gpu("NVIDIA RTX A6000", (8, 6), 48 * _GB),
    "l4": _gpu("NVIDIA L4", (8, 9), 24 * _GB),
    "l40": _gpu("NVIDIA L40", (8, 9), 48 * _GB),
    "l40s": _gpu("NVIDIA L40S", (8, 9), 48 * _GB),
    "rtx4090": _gpu("NVIDIA GeForce RTX 4090", (8, 9), 24 * _GB),
    "h100": _gpu("NVIDIA H100 80GB HBM3", (9, 0), 80 * _GB),
    "h100-pcie": _gpu("NVIDIA H100 PCIe", (9, 0), 80 * _GB),
    "h100-nvl": _gpu("NVIDIA H100 NVL", (9, 0), 94 * _GB),
    "h800": _gpu("NVIDIA H800", (9, 0), 80 * _GB),
    "h20": _gpu("NVIDIA H20", (9, 0), 97_871 * 2**20),
    "gh200": _gpu("NVIDIA GH200 480GB", (9, 0), 96 * _GB),
    "h200": _gpu("NVIDIA H200", (9, 0), 150_754_820_096),
    "h200-nvl": _gpu("NVIDIA H200 NVL", (9, 0), 150_754_820_096),
    "b200": _gpu("NVIDIA B200", (10, 0), 180 * _GB),
    "gb200": _gpu("NVIDIA GB200", (10, 0), 186 * _GB),
    "b300": _gpu("NVIDIA B300", (10, 3), 270 * _GB),
    "gb300": _gpu("NVIDIA GB300", (10, 3), 270 * _GB),
    "rtx5090": _gpu("NVIDIA GeForce RTX 5090", (12, 0), 32 * _GB),
    "gb10": _gpu("NVIDIA GB10", (12, 1), 128 * _GB),
}

#: Peak TFLOP/s of dense matrix products, from the vendors' data sheets. Attention cannot exceed them. NVIDIA publishes
#: none of H20. Its peaks are those of https://willitrunai.com/gpus/h20-96gb.
PEAKS: Mapping[str, Mapping[str, float]] = {
    "H100 PCIe": {"bfloat16": 756.0, "float16": 756.0, "float32": 378.0, "float64": 51.0},
    "H100 NVL": {"bfloat16": 835.0, "float16": 835.0, "float32": 417.0, "float64": 60.0},
    "H100": {"bfloat16": 989.0, "float16": 989.0, "float32": 494.0, "float64": 67.0},
    "H200 NVL": {"bfloat16": 835.0, "float16": 835.0, "float32": 417.0, "float64": 60.0},
    "H200": {"bfloat16": 989.0, "float16": 989.0, "float32": 494.0, "float64": 67.0},
    "A100": {"bfloat16": 312.0, "float16": 312.0, "float32": 156.0, "float64": 19.5},
    "H20": {"bfloat16": 148.0, "float16": 148.0, "float32": 74.0, "float64": 1.0},
    "B200": {"bfloat16": 2250.0, "float16": 2250.0, "float32": 1100.0, "float64": 40.0},
}

#: TFLOP/s that are beyond any single device.
NO_DEVICE_REACHES = 5000.0


#: Bytes that are left for the CUDA context, the code of loaded kernels, and the buffers of cuBLAS and NCCL.
RESERVED = 2**30


@dataclass(frozen=True)
class Capacity:
    """The memory of one device in bytes. Attention cannot have the reserved ones.

    Raises:
        RequestError: Nothing is left beside the reserved bytes.
    """

    total: int
    reserved: int = RESERVED

    def __post_init__(self) -> None:
        if self.usable <= 0:
            raise RequestError(
                f"a device of {self.total / 2**30:.3g} GiB was given, and {self.reserved / 2**30:g} GiB are reserved; "
                "give a larger one"
            )

    @staticmethod
    def of(device: Device) -> Capacity | None:
        """The capacity of a device, or of this machine for a CPU. None if its memory is unknown or all reserved."""
        memory = cpu_device().memory if device.kind == "cpu" and device.memory is None else device.memory
        return Capacity(memory) if memory is not None and memory > RESERVED else None

    @property
    def usable(self) -> int:
        """Bytes that attention can have."""
        return self.total - self.reserved

    def fits(self, size: int) -> bool:
        """Whether so many bytes fit beside the reserved ones."""
        return size <= self.usable


def named_device(text: str | None, measured: Mapping[str, Device] | None = None) -> Device:
    """A device by its name.

    The name is one of DEVICES or NVIDIA's own, such as `h100`, `H100-SXM5-80GB` or `NVIDIA H100 PCIe`, or a vendor's
    name that has evidence, or `cuda:9.0` for a compute capability, or `cpu`. `cuda` and None are this machine's device.
    `measured` is None where the caller takes no records.

    Raises:
        RequestError: The name is unknown. The message lists the names, and says how to add one.
    """
    here = current_device()
    if text is None or text == here.kind == "cuda":
        return here
    text = text.partition(" (compute capability")[0].strip()
    if text == "cpu":
        return cpu_device()
    if found := re.fullmatch(r"cuda:([0-9]{1,3})\.([0-9]{1,2})", text):
        return Device("cuda", (int(found[1]), int(found[2])))
    if measured is not None and text in measured:
        return measured[text]
    if gpu := _gpu_named(text):
        return gpu
    more = ", with --memory; or measure on it with `longca run`, and give that run's folder as --records"
    raise RequestError(
        f"unknown device {text!r}. Known are {', '.join(DEVICES)} and cpu. Name another one by its compute capability, "
        f"such as cuda:9.0{'' if measured is None else more}"
    )


def _gpu_named(text: str) -> Device | None:
    """The GPU of DEVICES with a name, which may also give the memory and a socket that makes no other GPU of it."""
    words = _words(text)
    for key, device in DEVICES.items():
        further = words - _words(key) - _words(device.name)
        if words >= _words(key) and all(_SOCKET.fullmatch(word) or _is_memory(word, device.memory) for word in further):
            return device
    return None


def _words(name: str) -> set[str]:
    """The words of a GPU's name that tell it from others."""
    apart = re.sub(r"(sxm\d?|pcie|nvl\d*)", r" \1 ", re.sub(r"nvidia|tesla|geforce|rtx", " ", name.lower()))
    return set(re.findall("[a-z0-9]+", re.sub(r"\s+gb", "gb", apart)))


def _is_memory(word: str, memory: int | None) -> bool:
    """Whether a word such as `80gb` is a device's memory, by the vendor's figure or by the driver's."""
    return word.endswith("gb") and word[:-2].isdecimal() and abs(int(word[:-2]) * _GB / (memory or 1) - 1) < 0.1


def evidence_name(device: Device) -> str:
    """The name of a device in the evidence."""
    return device.name or (cpu_device().name if device.kind == "cpu" else str(device))


def peak_tflops(device: str, dtype: str) -> float | None:
    """The peak of a device by its name, for a data type, or None if unknown."""
    return next((peaks.get(dtype) for name, peaks in PEAKS.items() if name in device), None)
