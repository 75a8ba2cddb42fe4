"""Lets nights find out what other machines or more samples bring."""
