"""The one door to Slurm: a client Protocol, its command-line implementation, text -> dataclasses, host lists, environment.

- Nothing else in slurmtrain runs squeue, scontrol, sbatch, scancel or sacct, or reads their output.
- Daemons are asked sparingly: one squeue per user and 10 s (shared cache), one scontrol per supervisor and 30 s.
- Text formats (-o, -O, show -o), not --json, whose schema changes between versions.
"""
