"""Rows of evidence for a kernel that is a plain sum, so that what is predicted of it can be told."""

from longca import masks
from longca.masks import Form
from longca_advice.evidence import Row, Run
from longca_advice.work import work_of

#: A device that nobody knows, so that no peak is known of it either.
RUN = Run(run="a run", device="Some GPU", capability=(9, 0), memory=80 * 10**9, packages={"numpy": "0.0.1"})

#: Seconds of one tile of one head: so many that no call is as quick as its launching.
TILE = 1e-4


def row(kernel="plain", pattern="full", seqlen=4096, direction="forward", form=Form.ROW_INTERVALS, run=RUN, **fields):
    """A row of a call that takes TILE seconds a tile, and twice that in the backward."""
    factors = {name: fields.pop(name) for name in ("window", "documents", "block", "kept", "heads") if name in fields}
    drawn = masks.sample(pattern, seqlen, **factors)
    work = work_of(drawn, form)
    usual = {"heads_q": 8, "heads_kv": 2, "head_dim": 128, "dtype": "bfloat16"}
    about = {**usual, "case": f"{kernel} {pattern} {seqlen} {direction}", **fields}
    seconds = TILE * about["heads_q"] * work.tiles * (2 if direction == "backward" else 1)
    about.setdefault("seconds", seconds)
    return Row(
        kernel=kernel,
        direction=direction,
        pattern=pattern,
        seqlen=seqlen,
        density=drawn.density,
        mask=drawn.digest,
        work=tuple(vars(work).values()),
        run=run,
        **about,
    )
