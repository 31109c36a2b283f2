"""Measuring context parallelism: a job of ranks, each a worker process with a supervisor, that measure cases together.

`torchrun` starts a process for each rank (`job`, `launch`). It supervises a worker process, which is the rank itself
(`member`, `worker`), so that a rank can die and nothing else does. Rank 0 also leads (`leader`): it says which case is
next, holds all ranks to its deadline, finds out which rank was to blame (`blame`) and writes the records (`runner`).
They talk through the job's store (`board`). The workers are a world of torch.distributed (`world`), which lives as long
as all goes well; after a failure there is a new one. What a rank does with a case is in `bench`.
"""
