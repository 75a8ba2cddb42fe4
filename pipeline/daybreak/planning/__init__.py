"""Decides what to rent for the night: the plan, its fallbacks, and the reasons for both."""
