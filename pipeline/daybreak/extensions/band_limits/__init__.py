"""Convolves without high frequencies, so that less has to be kept for the backward pass."""
