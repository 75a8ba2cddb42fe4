"""Tells webhooks and Airflow which version serves, and which predictions were written."""
