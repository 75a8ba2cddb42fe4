"""Registries that images are looked up in."""

import pytest

from daybreak.contract.errors import JobError
from daybreak.extensions.vertex import image


@pytest.mark.parametrize("host", ["evilgcr.io", "gcr.io.example.com", "evilpkg.dev", "127.0.0.1:9"])
def test_a_registry_of_others_gets_no_token_of_google(host, monkeypatch):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    assert image._token(f"{host}/shop/daybreak:7", "") == {}


@pytest.mark.parametrize("host", ["gcr.io", "eu.gcr.io", "europe-west4-docker.pkg.dev"])
def test_a_registry_of_google_gets_one_and_a_server_of_tokens_that_is_away_is_said(
    host, monkeypatch, tmp_path
):
    key = tmp_path / "key.json"
    key.write_text(
        '{"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r",'
        ' "token_uri": "http://127.0.0.1:9/token"}'
    )
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nothing leaves this machine
    with pytest.raises(JobError, match="does not answer"):
        image._token(f"{host}/shop/daybreak:7", "")
