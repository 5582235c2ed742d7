"""A real Slurm cluster on one machine, for development and tests (`tools/devcluster`).

- Standard library only, any python3 from 3.11 on: it runs before a virtual environment exists.
- Everything of a cluster lies in one folder (`spec.Folder`); `down` ends its processes and removes the folder.
- A process belongs to a cluster by evidence (`procs`), never by its name; signals go to pids.
- Configuration files are pure functions of a `Record` (`conf`); other clusters of this machine are never touched.
"""
