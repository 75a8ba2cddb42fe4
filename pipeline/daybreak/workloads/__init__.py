"""What a team builds its workload on: samples by partition, a model for tables, metrics."""
