"""An extension with a small implementation of each hook, which stands in a test for those of the project."""
