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
from collections import ChainMap
from functools import partial
from pathlib import Path

import sharded_refusals
import sharded_training
import torch
import torch.distributed as dist
from models import BATCHES, FAMILIES, make, packed, padded, step, tokens
from sharded_steps import MOST, close, gradients, line, same, whole
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from longca import masks
from longca.kernels.operators import ATTENTION_OPERATORS
from longca_transformers import context_parallel

PAGE = Path(__file__).parents[3] / "docs" / "transformers.md"
STRATEGIES = ["ulysses", "ring_p2p", "ring_all_gather", "auto"]


def check_models_and_batches():
    # JetMoe of transformers 4 does not take its attention from AttentionInterface.
    names = [name for name in MOST if name not in FAMILIES and (name != "jetmoe" or not sharded_refusals.OLD)]
    for name in names if dist.get_world_size() == 2 else ("llama", "gemma"):
        for at, batch in enumerate(BATCHES):
            if batch != "left":
                same(name, BATCHES[batch], line(dist.get_world_size()), STRATEGIES[at % 3])


def check_strategies():
    for strategy in STRATEGIES:
        same("gemma", packed(9, 6, 4), line(dist.get_world_size()), strategy)


def check_against_eager():
    same("llama", packed(5, 1, 11, 7), line(dist.get_world_size()), "auto", "eager", 1e-4)
    same("gemma", packed(9, 6, 4), line(dist.get_world_size()), "auto", "eager", 1e-4)


def check_families():
    """Sinks, caps of scores and narrower values, against eager."""
    for at, strategy in enumerate(STRATEGIES):
        same("gpt_oss", padded("right"), line(2), strategy, "eager")
        same(("gemma2", "deepseek")[at % 2], packed(5, 1, 11, 7), line(2), strategy, "eager")
    documents = masks.build("causal_document", 24, documents=[5, 12, 7])
    same("gpt_oss", {"input_ids": tokens(1, 24)}, line(2), "ring_p2p", "longca", own=[documents])


def check_padding_on_the_left_with_positions():
    batch = padded("left")
    batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    same("gemma", batch, line(2), "ring_p2p")


def check_numbered_documents():
    """Batches of TRL's packing, of numbers without positions, and of a model that keeps arguments from its layers."""
    documents = torch.tensor([0] * 5 + [1] * 11 + [2] * 8)[None]
    packing = {**packed(5, 11, 8), "seq_idx": documents.int()}
    same("gemma", packing, line(2), "ring_p2p")
    if not sharded_refusals.OLD:  # StableLM of transformers 4 does not take its attention from AttentionInterface
        same("stablelm", packing, line(2), "ulysses", most=1e-5)
    padding = torch.arange(24) < 20
    for given in ({"seq_idx": documents.int()}, {"attention_mask": (documents + 1) * padding}):
        same("llama", {"input_ids": tokens(1, 24), **given}, line(2), "ring_p2p", "longca")


def check_own_masks():
    prefix = masks.build("prefix_lm_document", 24, documents=[14, 10], prefix=4)
    tree = masks.tree([-1, 0, 0, 2, 2], [7, 6, 1, 3, 7])  # paths are longer than windows
    same("gemma", {"input_ids": tokens(2, 24)}, line(2), "ulysses", "longca", own=[prefix, tree])


def with_usp(model):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ring", "ulysses"))
    return context_parallel(model, mesh, "usp")


def with_checkpoints(model, **options):
    checkpoint = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    checkpoint({"use_reentrant": False, **options})
    return context_parallel(model, line(2), "ring_p2p")


def check_a_step(parallel):
    """Logits and gradients of a loss over all tokens are those of one device."""
    model, batch = make("gemma"), packed(9, 6, 4)
    wanted = step(model, batch, "sdpa")
    model.zero_grad(set_to_none=True)
    cp = parallel(model)
    mine, ids = model(**batch).logits, batch["input_ids"]
    group = None if parallel is with_usp else line(2).get_group()
    close(whole(cp, ids.shape, mine, group)[0], wanted.logits, MOST["gemma"], "logits")
    (cross_entropy(mine[0], cp.shard(ids)[0], reduction="sum") / ids.numel()).backward()
    cp.sync_gradients()
    for name, gradient in gradients(model).items():
        close(gradient, wanted.gradients[name], MOST["gemma"], name)


def check_a_mesh_of_two_dims():
    check_a_step(with_usp)


def check_checkpoints_recompute():
    check_a_step(with_checkpoints)
    check_a_step(
        partial(with_checkpoints, context_fn=partial(create_selective_checkpoint_contexts, ATTENTION_OPERATORS))
    )


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


def check_the_page():
    """The code of the page's section runs, on CPUs."""
    section = PAGE.read_text().partition("## Context parallelism")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 5
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
        "check_families",
        "check_padding_on_the_left_with_positions",
        "check_numbered_documents",
        "check_own_masks",
        "check_a_loss_of_ones_own",
        "check_losses_of_a_fused_head",
        "check_compiled_models",
        "check_autocast",
        "check_checkpoints_recompute",
        "check_layouts_are_for_the_dtype_that_layers_compute_in",
        "check_losses_of_20_steps",
        "check_prefetched_batches",
        "trainer_on_ranks",
    ],
    4: [
        "check_models_and_batches",
        "check_strategies",
        "check_a_mesh_of_two_dims",
        "check_fsdp2_on_another_dim",
        "check_as_few_tokens_as_ranks",
        "check_bad_input",
        "check_another_attention_under_context_parallel",
        "check_kinds_of_layers",
        "check_models_that_share_a_configuration",
        "check_models_that_ranks_cannot_compute",
        "check_the_page",
    ],
}


ALL = ChainMap(globals(), vars(sharded_training), vars(sharded_refusals))


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
            said[check] = ALL[check]() or "ok"
        except BaseException:
            said[check] = traceback.format_exc()
            break  # the others may wait for this rank
    Path(folder, f"{size}-{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


def main(folder):
    fork = multiprocessing.get_context("fork")
    alone = fork.Process(
        target=lambda: Path(folder, "alone.json").write_text(
            json.dumps({"trainer": sharded_training.trainer_losses(folder)})
        )
    )
    for processes in ([alone], *([fork.Process(target=work, args=(r, n, folder)) for r in range(n)] for n in CHECKS)):
        for process in processes:
            process.start()
        for process in processes:
            process.join()


if __name__ == "__main__":
    main(sys.argv[1])
