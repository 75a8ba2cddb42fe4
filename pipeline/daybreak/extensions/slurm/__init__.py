"""A Slurm cluster as a place to run jobs."""
