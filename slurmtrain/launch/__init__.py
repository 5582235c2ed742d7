"""From a job and a site to a batch job: request, template rendering, the submitit executor.

- Everything the job needs is on disk before sbatch is called.
- What the job runs comes in as a callable from the CLI: launch knows nothing of resilience.
"""
