"""The supervisor: one Python process per allocation that starts attempts, watches, classifies and asks for the requeue.

- Torch-free; knows nothing of launch.
- Outcomes are classified from exit files and Slurm's record, never from srun's code.
- `scontrol requeue` kills its caller: everything is written first, it comes last and once.
"""
