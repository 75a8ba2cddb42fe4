"""Where jobs run: this machine, Vertex AI, a Slurm cluster, a Kubernetes cluster."""
