"""Erases all rows of a person or an account from a home: data, arrays, versions, logs and predictions."""
