"""Train, through preemptions, and have a model before the deadline."""
