"""Calls of a service whose server of tokens may not answer, or may refuse the credentials."""

from collections.abc import Callable
from typing import Any

import pytest
from google.auth.exceptions import RefreshError, TransportError
from google.auth.transport.requests import Request
from google.oauth2.credentials import Credentials

from daybreak.backends.place import RetryPolicy, Unreachable
from daybreak.contract.errors import ParamsError
from daybreak.extensions.vertex.client import Client
from tests.loopback import Quiet, served


def calling(refresh: Callable[[Request], None]) -> None:
    """Makes a call that first gets a new token."""
    client = Client(region="here", endpoint="", retry=RetryPolicy(first_pause_s=0.01, give_up_s=0.02))

    def call(**_: Any) -> None:
        refresh(Request())

    client.ask(call)


def of_user(token_uri: str) -> Credentials:
    return Credentials(None, refresh_token="r", token_uri=token_uri, client_id="c", client_secret="s")


class Refusing(Quiet):
    def do_POST(self) -> None:
        self.send_response(400)
        self.end_headers()
        self.wfile.write(b'{"error": "invalid_grant", "error_description": "expired"}')


def test_a_server_of_tokens_that_does_not_answer_is_tried_again_later():
    with pytest.raises(Unreachable, match="does not answer"):
        calling(of_user("http://127.0.0.1:9/token").refresh)


def test_a_metadata_server_that_does_not_answer_is_tried_again_later():
    def refresh(_: Request) -> None:  # as google.auth.compute_engine does
        error = TransportError("no route to the host")
        raise RefreshError(error) from error

    with pytest.raises(Unreachable, match="does not answer"):
        calling(refresh)


def test_credentials_that_are_refused_are_a_matter_of_the_user():
    with served(Refusing) as address, pytest.raises(ParamsError, match="does not accept the credentials"):
        calling(of_user(f"http://{address}/token").refresh)
