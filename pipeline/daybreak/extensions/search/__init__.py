"""An extension of Daybreak; see README.md beside this file."""
