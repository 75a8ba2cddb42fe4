"""Which errors are of a host that does not answer, and so worth another try."""

import errno
import gzip
import socket

import pytest

from daybreak.contract.errors import (
    DataError,
    SourceUnreachable,
    has_password,
    is_unreachable,
    without_password,
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (OSError(errno.EHOSTUNREACH, "no route to host"), True),
        (socket.gaierror(socket.EAI_AGAIN, "temporary failure in name resolution"), True),
        (FileNotFoundError(errno.ENOENT, "no such file"), False),
        (PermissionError(errno.EACCES, "not allowed"), False),
        (gzip.BadGzipFile("not a gzipped file"), False),
        (ValueError("of something else"), False),
    ],
)
def test_only_a_host_that_does_not_answer_is_unreachable(error: Exception, expected: bool) -> None:
    assert is_unreachable(error) == expected


def test_data_that_cannot_be_reached_is_tried_again_and_wrong_data_is_not() -> None:
    assert (SourceUnreachable.exit_status, DataError.exit_status) == (1, 78)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://me:secret@host/x.csv", True),
        ("sftp://me:se/cret@host/{day}.csv", True),
        ("https://host/x.csv?sv=1&sig=secret", True),
        ("postgresql://host/db?user=me&password=secret#t", True),
        ("mssql+pyodbc:///?odbc_connect=DRIVER%3D1%3BUID%3Dme%3BPWD%3Dsecret#t", True),
        ("mssql+pyodbc:///?odbc_connect=PWD%3D%7Bse%3Bcret%7D", True),
        ("mssql+pyodbc:///?odbc_connect=PWD={secret};UID=me", True),
        ("https://host/data?user=me&pass=secret", True),
        ("https://host/data?db_pass=secret;auth=secret", True),
        ("https://ghp_secret@raw.githubusercontent.com/x.csv", True),
        ("https://$SECRET@raw.githubusercontent.com/x.csv", False),
        ("https://me:$SECRET@host/x.csv?sig=${SIG}", False),
        ("https://me:$ecret@host/x.csv", True),
        ("https://me:${SIG}cret@host/x.csv", True),
        ("https://host/x.csv?sig=$ecret", True),
        ("https://host/x.csv?bypass=1&oauth2=1", False),
        ("ssh://git@host/x.git", False),
        ("http://host:8080?user=me@example.com", False),
        ("http://host:8080#a@b", False),
        ("http://host?user=me:a@example.com", False),
        ("postgresql://me@host:5432/db#t", False),
        ("https://host:8080/of@shop/x.csv?versionId=3", False),
        ("$URL", False),
        ("/data/a@b:c/x.csv", False),
    ],
)
def test_a_url_with_a_password_or_a_key_is_known_and_never_shown(
    url: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the environment")
    monkeypatch.setenv("SIG", "of the environment")
    assert has_password(url) is expected
    assert "cret" not in without_password(url).replace("$SECRET", "")


@pytest.mark.parametrize("rest", ["?user=me@example.com", "#a@b", ":8080?user=me@example.com", ":80/of@shop"])
def test_an_at_sign_after_the_host_hides_nothing(rest: str) -> None:
    assert without_password(f"http://host{rest}") == f"http://host{rest}"
