"""Models under `context_parallel` on gloo ranks, held against one device. `test_context_parallel` runs it.

    python sharded_ranks.py FOLDER

One process imports everything, and is forked into worlds of 1, 2 and 4 ranks, one after another. A rank writes what its
world's checks said to FOLDER.
"""

import datetime
import json
import logging
import multiprocessing
import os
import re
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from models import BATCHES, MODELS, make, packed, padded, step, tokens, transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from longca import masks
from longca.errors import LongCAError
from longca.integrations.transformers import context_parallel, register, using

IGNORED = -100
PAGE = Path(__file__).parents[3] / "docs" / "transformers.md"
OLD = transformers.__version__.startswith("4.")
STRATEGIES = ["ulysses", "ring_p2p", "ring_all_gather", "auto"]
STEPS = 20
#: Differences relative to the largest value. Gemma's norms compute in float32, whatever the model's dtype is.
MOST = {"llama": 1e-11, "mistral": 1e-11, "qwen": 1e-11, "gemma": 1e-5}


def labels_of(batch):
    """Labels whose padding and first tokens of documents do not count, as collators give them."""
    labels = batch["input_ids"].clone()
    if "attention_mask" in batch:
        labels[batch["attention_mask"] == 0] = IGNORED
    if "position_ids" in batch:
        labels[batch["position_ids"] == 0] = IGNORED
    return labels


def whole(cp, shape, local, group):
    """The tensor [rows, tokens, ...] of the local ones [1, Tl, ...] of all ranks."""
    places = cp.shard(torch.arange(shape[0] * shape[1]).view(shape))
    everyones = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, (places[0], local[0].detach()), group)
    out = local.new_zeros(shape[0] * shape[1], *local.shape[2:])
    for where, values in everyones:
        out[where] = values
    return out.view(*shape, *local.shape[2:])


def gradients(model):
    """The gradients of all parameters, by their names."""
    full = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad.clone() for name, grad in full.items()}


def close(found, wanted, most, what):
    torch.testing.assert_close(
        found, wanted, rtol=0, atol=most * max(1e-3, wanted.abs().max().item()), msg=lambda text: f"{what}: {text}"
    )


def same(name, batch, mesh, strategy, implementation="sdpa", most=None, own=None):
    """Logits, gradients of a loss in float64, and the model's own loss and gradients are those of one device."""
    most = most or MOST[name]
    shape, group = batch["input_ids"].shape, mesh.get_group()
    model, labels = make(name), labels_of(batch)
    with using(own) if own is not None else nullcontext():
        register()
        model.set_attn_implementation(implementation)
        logits = model(**batch, use_cache=False).logits
        real = torch.nn.functional.pad(labels, (0, 1), value=IGNORED)[:, 1:]
        cross_entropy(logits.flatten(0, 1), real.flatten(), ignore_index=IGNORED).backward()
        wanted = gradients(model)
        model.zero_grad(set_to_none=True)
        loss = model(**batch, labels=labels, use_cache=False).loss
        loss.backward()
        wanted_loss, wanted_too = loss.detach(), gradients(model)
        model.zero_grad(set_to_none=True)
        cp = context_parallel(model, mesh, strategy)
        mine = model(**batch).logits
        shown = batch.get("attention_mask", torch.ones(shape)).bool()
        close(whole(cp, shape, mine, group)[shown], logits.detach()[shown], most, "logits")
        targets = cp.shard(real)[0]
        (cross_entropy(mine[0], targets, ignore_index=IGNORED, reduction="sum") / (real != IGNORED).sum()).backward()
        cp.sync_gradients()
        found = gradients(model)
        model.zero_grad(set_to_none=True)
        loss = model(**batch, labels=labels).loss
        loss.backward()
        cp.sync_gradients()
    close(loss.detach(), wanted_loss, 1e-6, "loss")  # transformers computes losses in float32
    found_too = gradients(model)
    assert found.keys() == found_too.keys() == wanted.keys()
    for parameter, gradient in wanted.items():
        close(found[parameter], gradient, most, parameter)
        close(found_too[parameter], wanted_too[parameter], max(most, 1e-6), f"{parameter}, by the model's loss")
    cp.remove()
    assert model.config._attn_implementation == implementation


def line(size):
    """A mesh of some ranks of the world, which this rank is in."""
    return init_device_mesh("cpu", (dist.get_world_size() // size, size), mesh_dim_names=("others", "cp"))["cp"]


def check_models_and_batches():
    for name in MODELS if dist.get_world_size() == 2 else ("llama", "gemma"):
        for at, batch in enumerate(BATCHES):
            if batch != "left":
                same(name, BATCHES[batch], line(dist.get_world_size()), STRATEGIES[at % 3])


def check_strategies():
    for strategy in STRATEGIES:
        same("gemma", packed(9, 6, 4), line(dist.get_world_size()), strategy)


def check_against_eager():
    same("llama", packed(5, 1, 11, 7), line(dist.get_world_size()), "auto", "eager", 1e-4)
    same("gemma", packed(9, 6, 4), line(dist.get_world_size()), "auto", "eager", 1e-4)


def check_padding_on_the_left_with_positions():
    batch = padded("left")
    batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    same("gemma", batch, line(2), "ring_p2p")


def check_own_masks():
    prefix = masks.build("prefix_lm_document", 24, documents=[14, 10], prefix=4)
    same("gemma", {"input_ids": tokens(2, 24)}, line(2), "ulysses", "longca", own=[prefix, masks.build("causal", 24)])


def check_a_mesh_of_two_dims():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ring", "ulysses"))
    model, batch = make("gemma"), packed(9, 6, 4)
    wanted = step(model, batch, "sdpa")
    model.zero_grad(set_to_none=True)
    cp = context_parallel(model, mesh, "usp")
    mine, ids = model(**batch).logits, batch["input_ids"]
    close(whole(cp, ids.shape, mine, None)[0], wanted.logits, MOST["gemma"], "logits")
    (cross_entropy(mine[0], cp.shard(ids)[0], reduction="sum") / ids.numel()).backward()
    cp.sync_gradients()
    for name, gradient in gradients(model).items():
        close(gradient, wanted.gradients[name], MOST["gemma"], name)


def check_checkpoints_recompute():
    model, batch = make("gemma"), packed(9, 6, 4)
    wanted = step(model, batch, "sdpa")
    model.zero_grad(set_to_none=True)
    checkpoint = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    checkpoint({"use_reentrant": False})
    cp = context_parallel(model, line(2), "ring_p2p")
    logits, ids = model(**batch).logits, batch["input_ids"]
    (cross_entropy(logits[0], cp.shard(ids)[0], reduction="sum") / ids.numel()).backward()
    cp.sync_gradients()
    for name, gradient in gradients(model).items():
        close(gradient, wanted.gradients[name], MOST["gemma"], name)


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
    for name, rate in (("llama", 2e-2), ("gemma", 1e-3)):
        alone = make(name)
        alone.set_attn_implementation("sdpa")
        wanted, model = training(alone, rate, drawn()), make(name)
        losses = training(model, rate, drawn(), context_parallel(model, line(dist.get_world_size())))
        assert losses[-1] < losses[0] - 0.1
        torch.testing.assert_close(losses, wanted, rtol=1e-5, atol=0)


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


def check_as_few_tokens_as_ranks():
    for strategy in STRATEGIES:
        for lengths in ((1, 3), (2, 3)):
            same("llama", packed(*lengths), line(dist.get_world_size()), strategy)


def check_autocast():
    """The error of bfloat16 is that of one device."""
    batch = packed(9, 6, 4)

    def computed(implementation, is_cast):
        model = make("gemma", torch.float32)
        model.set_attn_implementation("sdpa")
        cp = context_parallel(model, line(2), "ulysses") if implementation == "cp" else None
        with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
            logits = model(**batch, use_cache=False).logits
        return (whole(cp, batch["input_ids"].shape, logits, line(2).get_group()) if cp else logits.detach()).float()

    exact, theirs = computed("sdpa", False), computed("sdpa", True)
    mine = computed("cp", True)
    assert 0 < (mine - exact).abs().max() <= 3 * (theirs - exact).abs().max()


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


def trainer_losses(folder, mesh=None):
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
    )
    collator = transformers.DataCollatorWithFlattening()
    trainer = SameBatches(model, arguments, data_collator=collator, train_dataset=features)
    trainer.train()
    return [(each["loss"], float(each["grad_norm"])) for each in trainer.state.log_history if "loss" in each]


def trainer_on_ranks():
    return trainer_losses(sys.argv[1], line(dist.get_world_size()))


def refused(words, call):
    """Every rank refuses a call in these words, and goes on."""
    with pytest.raises(LongCAError) as caught:
        call()
    assert words in str(caught.value)


def check_bad_input():
    mesh = line(dist.get_world_size())
    model, ids = make("llama"), tokens(2, 24)
    size = dist.get_world_size()
    refused("before DDP wraps it", lambda: context_parallel(torch.nn.Linear(1, 1), mesh))
    refused("runs on a device mesh", lambda: context_parallel(model, size))
    refused("unknown strategy", lambda: context_parallel(model, mesh, "nobody"))
    refused(
        "the mesh is",
        lambda: context_parallel(model, init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")), "usp"),
    )
    assert model.config._attn_implementation != "longca_context_parallel"
    cp = context_parallel(model, mesh, "ring_p2p")
    refused("was not called yet", lambda: cp.shard(ids))
    refused("use_cache", lambda: model(input_ids=ids, use_cache=True))
    refused("logits_to_keep", lambda: model(input_ids=ids, logits_to_keep=1))
    refused("the tensor pixel_values", lambda: model(input_ids=ids, pixel_values=torch.zeros(1)))
    refused("give input_ids or inputs_embeds", lambda: model(labels=ids))
    refused(f"the batch has {size - 1} tokens, and the mesh {size} ranks", lambda: model(input_ids=ids[:1, : size - 1]))
    refused("begins with padding", lambda: model(**padded("left")))
    refused("ignores these documents", lambda: model(**packed(5, 7), attention_mask=torch.ones(1, 12)))
    refused("labels has the shape [2, 23]", lambda: model(input_ids=ids, labels=ids[:, 1:]))
    refused("flatten the batch", lambda: model(input_ids=ids, cu_seq_lens_q=torch.tensor([0, 24])))
    refused("different batches", lambda: model(input_ids=ids + dist.get_rank()))
    refused("was called by itself", lambda: model.model(input_ids=ids, use_cache=False))
    refused("[rows, tokens, ...] of the whole batch", lambda: (model(input_ids=ids), cp.shard(ids[:1])))
    cp.remove()
    needs = context_parallel(model, mesh, "ring_p2p", require_documents=True)
    refused("no boundaries of documents", lambda: model(input_ids=ids[:1]))
    model(**packed(5, 7))
    model(input_ids=ids[:1], cu_seq_lens_q=torch.tensor([0, 20, 24]))
    needs.remove()
    averaged = context_parallel(model, mesh, "ring_p2p", averaged=True)
    refused("leave sync_gradients away", averaged.sync_gradients)


def check_models_that_ranks_cannot_compute():
    mesh, sizes = line(dist.get_world_size()), {"hidden_size": 24, "intermediate_size": 24, "vocab_size": 11}

    def of(**others):
        heads = {"num_attention_heads": 3, "num_key_value_heads": 3, "num_hidden_layers": 2}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **heads, **others}))

    refused("heads", lambda: context_parallel(of(), mesh, "ulysses"))
    scaled = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    key = "rope_scaling" if OLD else "rope_parameters"
    refused("longest position", lambda: context_parallel(of(**{key: scaled}), mesh))
    refused("attention_dropout", lambda: context_parallel(of(attention_dropout=0.1), mesh))
    refused("linear_attention", lambda: context_parallel(of(layer_types=["full_attention", "linear_attention"]), mesh))
    own = of()
    own.loss_function = lambda **_: None
    refused("a loss of its own", lambda: context_parallel(own, mesh))
    capped = transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(
            **sizes, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, head_dim=8
        )
    )
    context_parallel(capped, mesh, "ring_p2p")
    refused("caps of scores", lambda: capped(input_ids=tokens(1, 24) % 11))
    chosen = of(layer_types=["full_attention"] * 2, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    cp = context_parallel(chosen, mesh, "ring_p2p")
    chosen.config.is_causal = False
    if not OLD:
        refused("bidirectional_mask_function", lambda: chosen(input_ids=tokens(1, 24) % 11))
    cp.remove()


def check_the_page():
    """The code of the page's section runs, on CPUs."""
    section = PAGE.read_text().partition("## Context parallelism")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 4
    names = {}
    for block in blocks:
        code = block.replace('"cuda"', '"cpu"').replace(
            'output_dir="out"', 'output_dir="out", use_cpu=True, report_to=[]'
        )
        exec(compile(code, str(PAGE), "exec"), names)
    assert names["trainer"].state.global_step == 2


CHECKS = {
    1: ["check_models_and_batches"],
    2: [
        "check_models_and_batches",
        "check_against_eager",
        "check_padding_on_the_left_with_positions",
        "check_own_masks",
        "check_a_loss_of_ones_own",
        "check_autocast",
        "check_checkpoints_recompute",
        "check_losses_of_20_steps",
        "trainer_on_ranks",
    ],
    4: [
        "check_models_and_batches",
        "check_strategies",
        "check_a_mesh_of_two_dims",
        "check_fsdp2_on_another_dim",
        "check_as_few_tokens_as_ranks",
        "check_bad_input",
        "check_models_that_ranks_cannot_compute",
        "check_the_page",
    ],
}


def work(rank, size, folder):
    """Runs the checks of one rank."""
    os.chdir(folder)
    torch.set_num_threads(1)
    logging.getLogger("longca").setLevel(logging.ERROR)
    where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in where.items()})
    store = dist.FileStore(f"{folder}/store{size}", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
    said = {}
    for check in CHECKS[size]:
        try:
            said[check] = globals()[check]() or "ok"
        except BaseException:
            said[check] = traceback.format_exc()
            break  # the others may wait for this rank
    Path(folder, f"{size}-{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


def main(folder):
    fork = multiprocessing.get_context("fork")
    alone = fork.Process(
        target=lambda: Path(folder, "alone.json").write_text(json.dumps({"trainer": trainer_losses(folder)}))
    )
    for processes in ([alone], *([fork.Process(target=work, args=(r, n, folder)) for r in range(n)] for n in CHECKS)):
        for process in processes:
            process.start()
        for process in processes:
            process.join()


if __name__ == "__main__":
    main(sys.argv[1])
