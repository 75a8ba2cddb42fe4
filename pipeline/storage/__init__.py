"""Each outside store, and the one module that talks to it."""
