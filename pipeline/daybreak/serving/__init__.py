"""Serves users: which version answers, with what, and what users do with the answer."""
