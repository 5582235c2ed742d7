"""Run folder -> accounts of its time, and of its GPU-hours.

- Torch-free; reads what a run has left behind, needs neither Slurm nor its accounting.
- A moment belongs to one kind of time and to one attempt: what is added up was cut before, in whole microseconds.
"""
