"""Frozen configuration: what people write (job, site, policy), validated and resolved, and the Plan that follows from it.

- Models are pydantic, frozen, and refuse unknown keys; an error names file, key, value, what is allowed and near misses.
- Nothing here looks at the machine, Slurm or the clock: a config is a function of its files and options alone.
- `job.json`, `site.json` and `plan.json` of a run folder are these models, resolved, with a format version `v`.
"""
