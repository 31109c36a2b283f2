"""20 training steps of Megatron's GPTModel, with LongCA or with Megatron's own core attention, for `megatron_ranks`."""

import torch
import torch.distributed as dist
from longca_layer_spec import with_longca
from megatron.core.models.common.embeddings import rotary_pos_embedding
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank

STEPS, RATE, TOKENS, VOCABULARY = 20, 0.05, 32, 64


def without_cuda():
    """Replaces the helpers of rotary embeddings that ask for a CUDA device."""

    def chunks_of_this_rank(embedding, dim, group):
        size, rank = group.size(), group.rank()
        chunks = embedding.chunk(2 * size, dim)
        return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]], dim)

    torch.cuda.current_device = lambda: "cpu"
    rotary_pos_embedding.get_pos_emb_on_this_cp_rank = chunks_of_this_rank


def model_of(groups, ranks, is_own):
    """A GPTModel of two layers with the same weights each time."""
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, num_query_groups=2, kv_channels=8,
        context_parallel_size=ranks, use_cpu_initialization=True, params_dtype=torch.float64, add_bias_linear=False,
        masked_softmax_fusion=False, gradient_accumulation_fusion=False, attention_dropout=0.0, hidden_dropout=0.0,
        bias_dropout_fusion=False, bias_activation_fusion=False, apply_rope_fusion=False,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec()
    torch.manual_seed(0)
    alone = {"tp": groups.tp, "cp": groups.tp, "pp": groups.pp, "embd": groups.embd}
    groups = groups if ranks > 1 else ProcessGroupCollection(**alone)
    return GPTModel(
        config,
        spec if is_own else with_longca(spec),
        vocab_size=VOCABULARY,
        max_sequence_length=TOKENS,
        position_embedding_type="rope",
        pg_collection=groups,
    ).double()


def losses(groups, ranks, is_own=False):
    """The losses of all steps. The gradients of ranks are summed, as Megatron does."""
    model, told = model_of(groups, ranks, is_own), []
    for step in range(STEPS):
        tokens = (3 * torch.arange(TOKENS) + torch.tensor([[step], [step + 7]])) % VOCABULARY
        batch = {"tokens": tokens, "labels": (tokens + 3) % VOCABULARY, "loss_mask": torch.ones(tokens.shape)}
        batch["position_ids"] = torch.arange(TOKENS).expand(tokens.shape)
        mine = get_batch_on_this_cp_rank(batch, groups.cp) if ranks > 1 else batch
        model.zero_grad()
        loss = model(mine["tokens"], mine["position_ids"], None, labels=mine["labels"]).sum() / tokens.numel()
        loss.backward()
        total = loss.detach().clone()
        for each in (total, *(weight.grad for weight in model.parameters())) if ranks > 1 else ():
            dist.all_reduce(each, group=groups.cp)
        with torch.no_grad():
            for weight in model.parameters():
                weight -= RATE * weight.grad
        told.append(total.item())
    return told
