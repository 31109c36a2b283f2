"""Training of models under `context_parallel`: 20 steps, losses of one's own, FSDP2 and `Trainer`."""

import sys
from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from models import FAMILIES, make, packed, tokens, transformers
from sharded_steps import IGNORED, close, gradients, labels_of, line
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from longca import masks
from longca.errors import RequestError
from longca_transformers import context_parallel, sharded_masks, using

STEPS = 20


def training(model, rate, batches, cp=None):
    """The losses of some steps."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=rate), []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(**batch, labels=labels_of(batch), use_cache=False).loss
        loss.backward()
        if cp is not None:
            cp.sync_gradients()
        optimizer.step()
        losses.append(loss.item())
    return losses


def drawn():
    """The batches of all steps, whose documents differ."""
    return [packed(3 + at % 7, 11, 20 - at % 7) for at in range(STEPS)]


def check_losses_of_20_steps():
    # Gemma's gradients are large, and longer steps make its rounding errors larger from step to step.
    rates = {"llama": 2e-2, "gemma": 1e-3, "gemma2": 2e-3, "deepseek": 2e-2, "gpt_oss": 2e-2}
    for name, rate in rates.items():
        # gpt-oss makes masks without positions.
        batches = [{"input_ids": tokens(2, 12 + at)} for at in range(STEPS)] if name == "gpt_oss" else drawn()
        alone = make(name)
        alone.set_attn_implementation("eager" if name in FAMILIES else "sdpa")
        wanted, model = training(alone, rate, batches), make(name)
        losses = training(model, rate, batches, context_parallel(model, line(dist.get_world_size())))
        assert losses[-1] < losses[0] - 0.1
        torch.testing.assert_close(losses, wanted, rtol=1e-5, atol=0)


def check_prefetched_batches():
    """Losses are those of one device, also with a mask of one's own that is given to `prefetch`."""
    batches, alone, model = [packed(3 + at, 9, 20 - at) for at in range(4)], make("gemma"), make("gemma")
    alone.set_attn_implementation("sdpa")
    cp = context_parallel(model, line(2), "ring_p2p")

    def prefetched():
        for batch in batches:
            cp.prefetch(**batch, labels=None).wait()
            yield batch

    losses = training(model, 1e-3, prefetched(), cp)
    torch.testing.assert_close(losses, training(alone, 1e-3, batches), rtol=1e-5, atol=0)
    own, batch = masks.build("prefix_lm_causal", 24, prefix=9), {"input_ids": tokens(1, 24)}
    with pytest.raises(RequestError, match="the block only prefetched a batch"), using(own):
        cp.prefetch(**batch).wait()
    cp.prefetch(**batch, longca_mask=own).wait()
    with using(own):
        within = model(**batch).logits
    assert torch.equal(model(**batch, longca_mask=own).logits, within)


def own_loss(model, cp, batch):
    """The mean loss of the next tokens, computed from the logits."""
    targets = torch.nn.functional.pad(batch["input_ids"], (0, 1), value=IGNORED)[:, 1:]
    logits = model(**batch).logits[0]
    return cp.loss(cross_entropy(logits, cp.shard(targets)[0], reduction="sum") / (targets != IGNORED).sum())


def check_a_loss_of_ones_own():
    model, batch = make("llama"), packed(9, 6, 4)
    wanted = model(**batch, labels=batch["input_ids"], use_cache=False).loss
    cp = context_parallel(model, line(2), "ring_p2p")
    close(own_loss(model, cp, batch).detach(), wanted.detach().double(), 1e-6, "loss")


def with_fused_head(model):
    """A model that returns the log-probabilities of targets if it is asked to, as TRL's trainers patch it."""
    plain = model.forward

    def forward(*, fused_lm_head=False, labels=None, shift_labels=None, num_items_in_batch=None, **others):
        if not fused_lm_head:
            given = {"labels": labels, "shift_labels": shift_labels, "num_items_in_batch": num_items_in_batch}
            return plain(**others, **{name: value for name, value in given.items() if value is not None})
        hidden = model.model(**others).last_hidden_state
        if shift_labels is None:
            hidden, shift_labels = hidden[:, :-1], labels[:, 1:]
        log_probs = model.lm_head(hidden).log_softmax(-1).gather(2, shift_labels.clamp(min=0)[..., None])[..., 0]
        log_probs = log_probs.masked_fill(shift_labels == IGNORED, 0)
        return {"loss": -log_probs.sum(), "log_probs": log_probs, "label_mask": shift_labels != IGNORED}

    model.forward = forward
    return model


def preference(model, batch):
    """A loss that is not linear in the tokens, of all log-probabilities of a batch, as that of DPO."""
    out = model(**batch, labels=batch["input_ids"], use_cache=False, fused_lm_head=True)
    sums = out["log_probs"].cumsum(1)
    assert sums.shape == out["label_mask"].shape == (1, batch["input_ids"].shape[1] - 1)
    assert out["label_mask"].all()
    torch.testing.assert_close(out["loss"].detach(), -sums[0, -1].detach())
    return torch.nn.functional.softplus(sums / sums.shape[1]).mean()


def check_losses_of_a_fused_head():
    """The gradients of a loss that a caller makes of the log-probabilities, averaged by FSDP2 or summed here."""
    batch, alone = packed(5, 1, 11, 7), with_fused_head(make("llama"))
    alone.set_attn_implementation("sdpa")
    wanted_loss = preference(alone, batch)
    wanted_loss.backward()
    wanted, mesh = gradients(alone), line(2)
    for averaged in (False, True):
        model = with_fused_head(make("llama"))
        if averaged:
            fully_shard(model, mesh=mesh)
        cp = context_parallel(model, mesh, "ulysses", averaged=averaged)
        loss = preference(model, batch)
        close(loss.detach(), wanted_loss.detach(), 1e-11, "loss")
        loss.backward()
        if not averaged:
            cp.sync_gradients()
        for name, gradient in gradients(model).items():
            close(gradient, wanted[name], 1e-9, name)


def check_compiled_models():
    batch, losses = packed(9, 6, 4), []
    for compiled in (lambda model: model, partial(torch.compile, backend="eager"), in_place):
        model = make("llama")
        cp = context_parallel(model, line(2), "ring_p2p")
        loss = compiled(model)(**batch, labels=batch["input_ids"]).loss
        loss.backward()
        cp.sync_gradients()
        losses.append((loss.item(), model.model.embed_tokens.weight.grad.norm().item()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    assert losses[2] == pytest.approx(losses[0], rel=1e-6)


def in_place(model):
    """A model that is compiled by its own method."""
    model.compile(backend="eager")
    return model


def check_fsdp2_on_another_dim():
    """Two halves of a batch on the ranks of `dp`, each sharded over `cp`, against both halves on one device."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    halves = [packed(5, 1, 11, 7), packed(12, 12)]
    alone = make("llama")
    alone.set_attn_implementation("sdpa")
    for half in halves:
        (alone(**half, labels=half["input_ids"], use_cache=False).loss / 2).backward()
    wanted = gradients(alone)
    batch = halves[mesh["dp"].get_local_rank()]
    for averaged, is_own in ((False, False), (True, False), (True, True)):
        model = make("llama")
        # FSDP over all ranks averages over `cp` too.
        over = init_device_mesh("cpu", (4,), mesh_dim_names=("all",)) if averaged else mesh["dp"]
        for layer in model.model.layers:
            fully_shard(layer, mesh=over)
        fully_shard(model, mesh=over)
        cp = context_parallel(model, mesh["cp"], "ring_all_gather", averaged=averaged)
        loss = own_loss(model, cp, batch) if is_own else model(**batch, labels=batch["input_ids"]).loss
        loss.backward()
        if not averaged:
            cp.sync_gradients()
        found = gradients(model)
        assert found.keys() == wanted.keys()
        for name, gradient in wanted.items():
            close(found[name], gradient, 1e-6, name)


def check_layouts_are_for_the_dtype_that_layers_compute_in():
    """Float32 weights under mixed precision of FSDP2, and under autocast within the model's forward."""
    mesh, batch = line(2), packed(9, 6, 4)

    def fsdp2(model):
        for part in (*model.model.layers, model):
            fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))

    def autocast(model):
        model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)

    for wrap in (fsdp2, autocast):
        model = make("llama", torch.float32)
        cp = context_parallel(model, mesh, "auto", averaged=True)
        wrap(model)
        with mock.patch.object(sharded_masks, "layout", wraps=sharded_masks.layout) as asked:
            loss = model(**batch, labels=batch["input_ids"]).loss
        assert [call.kwargs["dtype"] for call in asked.call_args_list] == [torch.bfloat16], wrap
        loss.backward()
        cp.remove()
        batch = packed(9, 6, 5)


def trainer_losses(folder, mesh=None, **options):
    """The losses and norms of gradients of a `Trainer`, whose ranks get the same batches."""
    features = [{"input_ids": tokens(1, 40)[0][start : start + 5 + start].tolist()} for start in range(1, 17)]
    model = make("llama", torch.float32)
    model.config.use_cache = False  # transformers 4 gives a model with a cache no boundaries of documents
    if mesh is None:
        model.set_attn_implementation("sdpa")
    else:
        context_parallel(model, mesh, "ulysses", averaged=True, require_documents=True)

    class SameBatches(transformers.Trainer):
        def get_train_dataloader(self):
            return DataLoader(self.train_dataset, self.args.train_batch_size, collate_fn=self.data_collator)

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS // 2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        average_tokens_across_devices=False,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    collator = transformers.DataCollatorWithFlattening()
    trainer = SameBatches(model, arguments, data_collator=collator, train_dataset=features)
    trainer.train()
    return [(each["loss"], float(each["grad_norm"])) for each in trainer.state.log_history if "loss" in each]


def trainer_on_ranks():
    return trainer_losses(sys.argv[1], line(dist.get_world_size()))
