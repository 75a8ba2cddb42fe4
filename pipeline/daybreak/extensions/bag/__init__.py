"""Many runs of one command, each with a seed, on machines that may be taken away."""
