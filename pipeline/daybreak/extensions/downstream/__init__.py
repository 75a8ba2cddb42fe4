"""Tells those downstream which version serves: signed webhooks, and assets of Airflow."""
