"""Supervises the training job: where it runs, when it is done, what it costs, and what came back."""
