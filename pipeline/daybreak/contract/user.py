"""Names the user who runs this process."""

import getpass
import os


def user() -> str:
    """Returns the name of the system's user; its number where it has no name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
