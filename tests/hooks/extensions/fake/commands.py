"""A command."""


def greet(*, name: str = "you") -> int:
    """Greet somebody.

    Args:
        name: whom
    """
    print(f"good morning, {name}")
    return 0
