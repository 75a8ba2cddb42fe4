"""Lets nights find out what other machines, more samples, more days or a wider model bring."""
