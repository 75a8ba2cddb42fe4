"""Supervises the training job: places it, watches progress and cost, and collects the result."""
