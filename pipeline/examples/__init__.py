"""Contains the default workload and examples. Nothing imports them; params.yaml names them."""
