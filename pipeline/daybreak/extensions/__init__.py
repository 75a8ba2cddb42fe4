"""Holds what a night on one machine can do without, a folder each; daybreak/hooks.py lists them."""
