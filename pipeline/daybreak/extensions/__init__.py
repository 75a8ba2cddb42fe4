"""Extensions, a folder each, that a night on one machine does not need; daybreak/hooks.py lists them."""
