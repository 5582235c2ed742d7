"""Checks with a remedy each, before a world starts; they decide on JSON that a probe of the node wrote.

- `node` runs on every node, one task each, without MPI and without torch, and writes what it found; it judges nothing.
- `judge` compares the answers with what was promised: a pure function; every fault names its node and what to do.
"""
