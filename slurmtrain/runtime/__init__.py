"""What a rank does before it is a trainer: MPI bootstrap, process groups, mesh, device, seeds.

- MPI's size is compared with the plan and SLURM_NTASKS before torch is touched.
- Rank 0 offers a free port on the site's interface and broadcasts it over MPI; never gethostname(), never a fixed port.
- Every process group ends its collectives at the site's time-out; what is wrong on one rank of the start is raised by all.
- A rank that fails writes its record and leaves at once (`os._exit`); it never waits for peers.
"""
