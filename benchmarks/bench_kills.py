"""Does a night end the same whatever is killed in it? SIGKILLs in each stage and command, in two examples.

SIGKILL goes to all processes of the home, training among them, at random moments; interruptions.py says of
what. MINUTES=60 kills nothing more after an hour. QUICK=1 does one round of two kills a command, in the shop
alone.
"""

from contextlib import nullcontext
from functools import partial

from benchmarks import interruptions
from benchmarks.interruptions import Machine


def main() -> None:
    """Kill what can be killed in the nights of both examples."""
    interruptions.finish("kills", "kills", partial(nullcontext, Machine()))


if __name__ == "__main__":
    main()
