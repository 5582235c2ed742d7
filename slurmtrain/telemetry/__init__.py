"""Events: their types, the JSONL sink and reader, and the accounting of FLOPs, MFU and goodput.

- An event is one JSON line with `v t attempt rank kind`; after a restart the highest attempt wins for a step.
- Writing never blocks a training step: lines go through a queue to a writer thread.
- A reader skips a torn last line and unknown kinds; it never fails on what a newer release wrote.
"""
