"""Jobs of several ranks: their supervisors, their leader, and their process group.

The runner starts a process for each rank (`rank_process`), or `torchrun` starts the supervisor of each (`job`). A
thread supervises each process (`member`), so a rank can die and nothing else does. Rank 0 also leads (`leader`): it
names the next case, holds all ranks to the deadline, and finds the rank to blame for a failure. They talk through the
job's store (`board`).
The ranks are one process group (`world`) until a failure, and then a new one. Their workers, which run strategies and
kernels, are another group.
"""
