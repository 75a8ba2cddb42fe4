"""Describes the machines that can be rented, their prices and start-up times, and the machine at hand."""
