"""Which errors are of a host that does not answer, and so worth another try."""

import errno
import gzip
import socket

import pytest

from daybreak.contract.errors import DataError, SourceUnreachable, is_unreachable


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
