"""The probe: one process for each device, which measures what the conductor of a preflight tells it to (preflight/conductor.py).

`python -m slurmtrain.runtime.probe HOST:PORT`: connects, says who it is, obeys orders one at a time, and leaves when the conductor is gone.

- There is no world around all probes: each group is formed for one order, by a store at its first member, and is destroyed after it.
- A group begins with a roll call by the store: who is dead or hangs is known by name before gloo or NCCL wait for it.
- An order ends by itself within its limit. One that does not (a call that never returns) is ended by a second thread, which says so and
  lets the process start anew in its place (execve): a hung call of NCCL, of the driver or of a file system costs that order alone.
"""
