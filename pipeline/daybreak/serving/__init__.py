"""Serves users: picks a version for each request, answers, and records what users do with the answer."""
