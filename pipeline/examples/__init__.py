"""Workloads: the default and examples. Nothing imports them; params.yaml names them."""
