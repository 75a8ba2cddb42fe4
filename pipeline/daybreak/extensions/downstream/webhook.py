"""Posts JSON to a webhook, signed as its receiver can check without Daybreak.

    X-Daybreak-Signature: t=1735689600,v1=5257a8...

v1 is the HMAC-SHA256 of `t.body` by the secret, in hexadecimal; t is when it was signed, in seconds since
1970, so that a receiver may refuse what is old.
"""

import hashlib
import hmac
import json
import os
import re
import time
from typing import Any

from daybreak.contract.errors import ParamsError, PipelineError

HEADER = "X-Daybreak-Signature"
TIMEOUT_S = 10.0
TRIES = 3


def unset(url: str, secret: str) -> str:
    """Returns in words which variable is needed and not set; "" where none is.

    >>> unset("https://shop.example/$NO_SUCH_KEY", "$HOME")
    'a URL of notify.webhooks names $NO_SUCH_KEY, which is not set; set it'
    """
    if not os.environ.get(secret.removeprefix("$")):
        return f"notify.webhook_secret names {secret}, which is not set; set it"
    missing = next((name for name in re.findall(r"\$\{?(\w+)", url) if name not in os.environ), "")
    return f"a URL of notify.webhooks names ${missing}, which is not set; set it" if missing else ""


def post(url: str, secret: str, event: dict[str, Any]) -> bool:
    """Posts an event as JSON, up to three times; PipelineError says why it did not arrive."""
    import requests
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

    if fault := unset(url, secret):
        raise ParamsError(fault)
    address, key = os.path.expandvars(url), os.environ[secret.removeprefix("$")]
    body = json.dumps(event, sort_keys=True).encode()
    again = Retrying(
        stop=stop_after_attempt(TRIES),
        wait=wait_exponential(),
        retry=retry_if_exception_type((requests.ConnectionError, requests.Timeout, _Busy)),
        reraise=True,
    )
    try:
        again(_post, address, body, key.encode())
    except requests.RequestException as error:  # its words would name the URL, which may be a secret
        raise PipelineError(f"it did not answer ({type(error).__name__})") from None
    return True


def signature(body: bytes, key: bytes, *, at: int) -> str:
    """Returns the header of a body that is signed at a moment, in seconds since 1970."""
    digest = hmac.new(key, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


class _Busy(PipelineError):
    """The server asks to be tried again."""


def _post(address: str, body: bytes, key: bytes) -> None:
    import requests

    headers = {"Content-Type": "application/json", HEADER: signature(body, key, at=int(time.time()))}
    answer = requests.post(address, data=body, headers=headers, timeout=TIMEOUT_S, allow_redirects=False)
    if answer.status_code >= 500 or answer.status_code == 429:
        raise _Busy(f"it answered with HTTP status {answer.status_code}")
    if not answer.ok or answer.is_redirect:
        raise PipelineError(f"it answered with HTTP status {answer.status_code}")
