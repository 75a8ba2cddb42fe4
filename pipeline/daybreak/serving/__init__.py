"""Runs a version in a process of its own, which answers the requests that it is sent."""
