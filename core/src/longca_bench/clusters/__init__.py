"""Clusters: a run as a job of Slurm, submitted through submitit or as a script for `sbatch`.

`job` has the job and the command that it runs on each node. `script` writes the script, and `submit` submits the job.
A job that reaches its time limit is put back into the queue, and resumes its run.
"""
