"""A Kubernetes cluster as a place to run jobs."""
