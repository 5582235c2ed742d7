"""Topology and placement: which rank sits where, and whether a layout can be placed at all.

- World rank is not SLURM_PROCID: `placement` maps (node, local rank) to a world rank and coordinates.
- A tensor-parallel group never leaves its NVLink domain; a domain is not a host (a site says: node, block of k nodes, pairs).
"""
