"""cuDNN's graphs as its documentation describes them, emulated in float64 on the CPU with strides and offsets.

The emulation refuses the same graphs as cuDNN. It returns NaN for a query that sees nothing, so a test fails if a
result depends on cuDNN's behaviour there.
"""

from __future__ import annotations

import torch

from longca.errors import UnsupportedError
from longca.masks import Form, Window
from longca_cudnn.kernel import CuDNN
from longca_cudnn.specs import Uid

FORMS = (Form.FULL, Form.CAUSAL, Form.WINDOW, Form.VARLEN)


class EmulatedCuDNN(CuDNN):
    """The adapter without a manifest. Tests replace its graphs by `EmulatedGraph`."""

    def plan(self, problem):
        return self.plan_as(problem, next(form for form in FORMS if problem.concrete_mask.admits(form)))


class EmulatedGraph:
    def __init__(self, spec):
        self.spec = spec
        is_band = spec.window != Window(None, None)
        if is_band and spec.ragged is None and spec.seqlen_q > spec.seqlen_k:
            raise UnsupportedError("Bottom right causal mask does not support max_s_q > max_s_kv")
        if spec.seqlen_q == spec.seqlen_k == 1:
            raise UnsupportedError("s_q = s_kv = 1 is not supported")

    def run(self, tensors):
        for document in range(self.spec.batch):
            if self.spec.direction == "forward":
                self._forward(tensors, document)
            else:
                self._backward(tensors, document)

    def _forward(self, tensors, document):
        q, k, v, out = (self._view(tensors, uid, document) for uid in (Uid.Q, Uid.K, Uid.V, Uid.OUT))
        scores = self._scores(q, k)
        sums = scores.logsumexp(-1)
        result = (scores - sums[..., None]).exp() @ self._per_query_head(v)
        out.copy_(result)
        self._lse_view(tensors, document).copy_(sums.masked_fill(sums == -torch.inf, torch.nan))

    def _backward(self, tensors, document):
        q, k, v, out, dout, dq, dk, dv = (
            self._view(tensors, uid, document)
            for uid in (Uid.Q, Uid.K, Uid.V, Uid.OUT, Uid.DOUT, Uid.DQ, Uid.DK, Uid.DV)
        )
        sums = self._lse_view(tensors, document).double()
        weights = (self._scores(q, k) - sums[..., None]).exp()
        dout, delta = dout.double(), (dout.double() * out.double()).sum(-1, keepdim=True)
        dscores = weights * (dout @ self._per_query_head(v).mT - delta) * self.spec.scale
        dq.copy_(dscores @ self._per_query_head(k))
        for grad, part in ((dk, dscores.mT @ q.double()), (dv, weights.mT @ dout)):
            grad.copy_(part.unflatten(0, (self.spec.heads_kv, -1)).sum(1))

    def _scores(self, q, k):
        spec, (queries, keys) = self.spec, (q.shape[1], k.shape[1])
        scores = q.double() @ self._per_query_head(k).mT * spec.scale
        shift = keys - queries if spec.bottom_right else 0
        diagonal = torch.arange(keys)[None, :] - torch.arange(queries)[:, None] - shift
        hidden = torch.zeros_like(diagonal, dtype=torch.bool)
        if spec.window.left is not None:
            hidden |= diagonal < -spec.window.left
        if spec.window.right is not None:
            hidden |= diagonal > spec.window.right
        return scores.masked_fill(hidden, -torch.inf)

    def _per_query_head(self, x):
        return x.double().repeat_interleave(self.spec.heads_q // self.spec.heads_kv, 0)

    def _view(self, tensors, uid, document):
        """[heads, tokens, head_dim] of one document."""
        (_, heads, tokens, dim), (_, by_head, by_token, _) = self.spec.layout(uid)
        length = self._length(tensors, Uid.LENGTH_K if uid.is_of_keys else Uid.LENGTH_Q, document, tokens)
        return self._at(tensors, uid, document, (heads, length, dim), (by_head, by_token, 1))

    def _lse_view(self, tensors, document):
        (_, heads, tokens, _), (_, by_head, by_token, _) = self.spec.lse_layout
        length = self._length(tensors, Uid.LENGTH_Q, document, tokens)
        return self._at(tensors, Uid.LSE, document, (heads, length), (by_head, by_token))

    def _length(self, tensors, uid, document, longest):
        if self.spec.ragged is None:
            return longest
        assert tensors[uid].dtype == torch.int32
        assert tensors[uid].shape == (self.spec.batch,)
        assert tensors[uid][document] <= longest
        return int(tensors[uid][document])

    def _at(self, tensors, uid, document, size, stride):
        tensor, offset = tensors[uid], 0
        if self.spec.ragged is not None:
            assert tensors[uid.offsets].dtype == torch.int64
            assert tensors[uid.offsets].shape == (self.spec.batch + 1,)
            offset = int(tensors[uid.offsets][document])
        return tensor.as_strided(size, stride, tensor.storage_offset() + offset)
