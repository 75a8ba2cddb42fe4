"""Machines that can be rented: catalog, prices, start-up times, and the machine at hand."""
