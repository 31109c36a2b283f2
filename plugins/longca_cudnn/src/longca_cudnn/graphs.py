"""Building cuDNN's attention graphs, and running them.

A graph is cuDNN's program for one set of shapes, strides and masks. To build one, cuDNN's heuristics propose engines,
and the first that works is compiled in tenths of a second. A graph has no pointers: each run passes them.

Source: the documentation of cudnn-frontend, operations/Attention
(https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cudnn
import torch
from torch import Tensor

from longca.errors import UnsupportedError
from longca_cudnn.documents import band
from longca_cudnn.specs import GraphSpec, Uid

__all__ = ["Graph", "new_handle"]

_DTYPES = {"bfloat16": cudnn.data_type.BFLOAT16, "float16": cudnn.data_type.HALF}


def new_handle() -> Any:
    """A handle of cuDNN's for the current CUDA device."""
    return cudnn.create_handle()


class Graph:
    """A built graph.

    Args:
        spec: The description of the graph.
        target: The target in the form of `cudnn.pygraph`: `handle`, or `sm_version` and `device_property` to build
            without a device.

    Attributes:
        workspace_bytes: Bytes of scratch memory of a run.

    Raises:
        UnsupportedError: cuDNN has no engine for the graph. The message has cuDNN's reason.
    """

    def __init__(self, spec: GraphSpec, **target: Any) -> None:
        self._spec = spec
        self._handle = target.get("handle")
        self._graph = cudnn.pygraph(
            io_data_type=_DTYPES[spec.dtype],
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            **target,
        )
        try:
            self._build()
        except cudnn.cudnnGraphNotSupportedError as error:
            reason = " ".join(str(error).split())
            version = cudnn.backend_version_string()
            raise UnsupportedError(f"cuDNN {version} refuses a {spec.label}: {reason}") from error
        self.workspace_bytes = int(self._graph.get_workspace_size())

    def run(self, tensors: Mapping[int, Tensor]) -> None:
        """Runs the graph on the current stream.

        Args:
            tensors: Every tensor of the graph by its uid, including outputs, in the layout of the spec.
        """
        device = next(iter(tensors.values())).device
        with torch.cuda.device(device):
            workspace = torch.empty(max(self.workspace_bytes, 1), dtype=torch.uint8, device=device)
            cudnn.set_stream(handle=self._handle, stream=torch.cuda.current_stream().cuda_stream)
            self._graph.execute({int(uid): tensor for uid, tensor in tensors.items()}, workspace, handle=self._handle)

    def _build(self) -> None:
        if self._spec.direction == "forward":
            self._add_forward()
        else:
            self._add_backward()
        self._graph.validate()
        self._graph.build_operation_graph()
        self._graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        self._graph.check_support()
        self._graph.build_plans()

    def _add_forward(self) -> None:
        q, k, v = (self._input(uid) for uid in (Uid.Q, Uid.K, Uid.V))
        out, lse = self._graph.sdpa(q=q, k=k, v=v, generate_stats=True, **self._masking())
        self._output(out, Uid.OUT)
        self._describe_lse(lse).set_output(True)

    def _add_backward(self) -> None:
        spec = self._spec
        q, k, v, out, dout = (self._input(uid) for uid in (Uid.Q, Uid.K, Uid.V, Uid.OUT, Uid.DOUT))
        dim, stride = spec.lse_layout
        lse = self._graph.tensor(dim=dim, stride=stride, data_type=cudnn.data_type.FLOAT, uid=int(Uid.LSE))
        limits = {}
        if spec.ragged is not None:
            # Without these, accumulators take batch × longest document, far more than all tokens together.
            limits = {"max_total_seq_len_q": spec.ragged[0], "max_total_seq_len_kv": spec.ragged[1]}
        grads = self._graph.sdpa_backward(
            q=q,
            k=k,
            v=v,
            o=out,
            dO=dout,
            stats=self._describe_lse(lse),
            use_deterministic_algorithm=spec.deterministic,
            **limits,
            **self._masking(),
        )
        for tensor, uid in zip(grads, (Uid.DQ, Uid.DK, Uid.DV), strict=True):
            self._output(tensor, uid)

    def _masking(self) -> dict[str, Any]:
        spec = self._spec
        left, right = band(spec.window)
        ends = cudnn.diagonal_alignment
        arguments = {
            "attn_scale": spec.scale,
            "diagonal_alignment": ends.BOTTOM_RIGHT if spec.bottom_right else ends.TOP_LEFT,
            "diagonal_band_left_bound": left,
            "diagonal_band_right_bound": right,
        }
        if spec.ragged is not None:
            arguments |= {
                "use_padding_mask": True,
                "seq_len_q": self._integers(Uid.LENGTH_Q, spec.batch, cudnn.data_type.INT32),
                "seq_len_kv": self._integers(Uid.LENGTH_K, spec.batch, cudnn.data_type.INT32),
            }
        return arguments

    def _input(self, uid: Uid) -> Any:
        dim, stride = self._spec.layout(uid)
        tensor = self._graph.tensor(dim=dim, stride=stride, data_type=_DTYPES[self._spec.dtype], uid=int(uid))
        return self._at_offsets(tensor, uid)

    def _output(self, tensor: Any, uid: Uid) -> None:
        dim, stride = self._spec.layout(uid)
        tensor.set_output(True).set_uid(int(uid)).set_dim(dim).set_stride(stride)
        tensor.set_data_type(_DTYPES[self._spec.dtype])
        self._at_offsets(tensor, uid)

    def _describe_lse(self, tensor: Any) -> Any:
        dim, stride = self._spec.lse_layout
        tensor.set_uid(int(Uid.LSE)).set_dim(dim).set_stride(stride).set_data_type(cudnn.data_type.FLOAT)
        return self._at_offsets(tensor, Uid.LSE)

    def _at_offsets(self, tensor: Any, uid: Uid) -> Any:
        if self._spec.ragged is not None:
            tensor.set_ragged_offset(self._integers(uid.offsets, self._spec.batch + 1, cudnn.data_type.INT64))
        return tensor

    def _integers(self, uid: int, length: int, dtype: Any) -> Any:
        return self._graph.tensor(dim=[length, 1, 1, 1], stride=[1, 1, 1, 1], data_type=dtype, uid=int(uid))
