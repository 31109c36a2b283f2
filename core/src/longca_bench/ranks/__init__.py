"""Jobs of several ranks: their launch, their supervisors, their leader, and their process group.

`launch` or `torchrun` starts a process for each rank (`job`). It supervises the process that measures on the rank
(`member`, `rank_process`), so a rank can die and nothing else does. Rank 0 also leads (`leader`): it names the next
case, holds all ranks to the deadline, and finds the rank to blame for a failure. They talk through the job's store
(`board`).
The ranks are one process group (`world`) until a failure, and then a new one. Their workers, which run strategies and
kernels, are another group.
"""
