"""Starts a program with secrets from files: `python -m daybreak.with_secrets PROGRAM ARGUMENT...`.

Where the value of an environment variable says `{secret NAME}`, the text of the file NAME in FOLDER takes its
place, so that a container's settings name its secrets without holding them (compose.yaml). A missing or empty
secret stops the program before it starts, so that nothing runs with an empty password.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from daybreak.contract import environment
from daybreak.contract.errors import ParamsError, PipelineError

FOLDER = Path("/run/secrets")  # where Docker mounts them
SECRET = re.compile(r"\{secret (\w+)\}")


def filled(given: Mapping[str, str], *, folder: Path) -> dict[str, str]:
    """Returns the environment with its secrets in place; ParamsError names one that is not there."""

    def put_in(variable: str, value: str) -> str:
        return SECRET.sub(lambda match: _text_of(folder / match[1], variable), value)

    return {variable: put_in(variable, value) for variable, value in given.items()}


def _text_of(path: Path, variable: str) -> str:
    try:
        text = path.read_text().strip()
    except OSError as error:
        raise ParamsError(
            f"{variable} needs the secret {path.name}, and {path} cannot be read: {error.strerror}; make it"
        ) from None
    if not text:
        raise ParamsError(f"{variable} needs the secret {path.name}, and {path} is empty; write it there")
    return text


def main(words: Sequence[str]) -> None:
    """Becomes the program."""
    try:
        given = filled(os.environ, folder=FOLDER)
        environment.spare_loopback(given)  # Docker gives its proxy to every container
        os.execvpe(words[0], list(words), given)
    except PipelineError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"{words[0]} cannot be started: {error.strerror}; name a program of the image")


if __name__ == "__main__":
    main(sys.argv[1:])
