"""Calls a service that may not answer: each call with a deadline, and retried with back-off.

Google's clients set no deadline by themselves, and retry getters only. Here a call ends in an answer, in
`Unreachable` (it may have been done or not), or in `Denied`. Calls that change something are not retried
here: the caller first looks at what became of the call before.
"""

import logging
import re
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from daybreak.backends.place import NotDone, RetryPolicy, Unreachable
from daybreak.contract.errors import JobError, ParamsError
from daybreak.extensions.vertex.error_codes import is_device_quota

if TYPE_CHECKING:
    from google.api_core.exceptions import GoogleAPICallError
    from google.api_core.operations_v1 import AbstractOperationsClient
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.aiplatform_v1.services.endpoint_service import EndpointServiceClient
    from google.cloud.aiplatform_v1.services.job_service import JobServiceClient
    from google.cloud.aiplatform_v1.services.model_service import ModelServiceClient

log = logging.getLogger(__name__)

A = TypeVar("A")


class Denied(JobError):
    """The service refused the request, and a retry will not help; `status` is HTTP's, `code` google.rpc's."""

    def __init__(self, text: str, *, status: int, code: str, message: str) -> None:
        super().__init__(text)
        self.status, self.code, self.message = status, code, message


class Client:
    """Calls Vertex AI in one region; makes Google's clients at first use, as their import takes seconds."""

    def __init__(self, *, region: str, endpoint: str, retry: RetryPolicy) -> None:
        self.region, self.endpoint, self.retry = region, endpoint, retry

    @cached_property
    def jobs(self) -> "JobServiceClient":
        """Google's client for jobs; ParamsError without credentials."""
        from google.cloud.aiplatform_v1.services.job_service import JobServiceClient

        return self._made(JobServiceClient)

    @cached_property
    def models(self) -> "ModelServiceClient":
        """Google's client for models."""
        from google.cloud.aiplatform_v1.services.model_service import ModelServiceClient

        return self._made(ModelServiceClient)

    @cached_property
    def endpoints(self) -> "EndpointServiceClient":
        """Google's client for endpoints."""
        from google.cloud.aiplatform_v1.services.endpoint_service import EndpointServiceClient

        return self._made(EndpointServiceClient)

    @cached_property
    def operations(self) -> "AbstractOperationsClient":
        """Google's client for long-running operations, at /v1, where the service documents them.

        Those of the clients above call /ui, which the service does not document.
        """
        from google.api_core.operations_v1 import AbstractOperationsClient, OperationsRestTransport

        scheme, _, host = self._address.rpartition("://")
        routes = {
            f"google.longrunning.Operations.{method}": [{"method": "get", "uri": uri}]
            for method, uri in (
                ("GetOperation", "/v1/{name=projects/**/operations/*}"),
                ("ListOperations", "/v1/{name=projects/**}/operations"),
            )
        }
        transport = OperationsRestTransport(
            host=f"{scheme or 'https'}://{host}",
            credentials=credentials(self.endpoint),
            http_options=routes,
        )
        return AbstractOperationsClient(transport=transport)

    @property
    def _address(self) -> str:
        return self.endpoint or f"{self.region}-aiplatform.googleapis.com"

    def _made(self, kind: type[A]) -> A:
        """Makes a client: by REST, unless the endpoint starts with grpc:// (on loopback, without TLS)."""
        from google.api_core.client_options import ClientOptions

        made: Any = kind
        if self.endpoint.startswith("grpc://"):
            import grpc  # type: ignore[import-untyped]

            channel = grpc.insecure_channel(self.endpoint.removeprefix("grpc://"))
            return cast(A, made(transport=made.get_transport_class("grpc")(channel=channel)))
        options = ClientOptions(api_endpoint=self._address)
        return cast(A, made(credentials=credentials(self.endpoint), client_options=options, transport="rest"))

    def once(self, call: Callable[..., A], **request: Any) -> A:
        """Makes the call once and returns its answer.

        Raises Unreachable if there is none, and Denied if the call was refused.
        """
        from google.api_core import exceptions
        from google.auth.exceptions import GoogleAuthError
        from requests.exceptions import RequestException

        try:
            return call(timeout=self.retry.call_s, retry=None, **request)
        except exceptions.TooManyRequests as error:
            if not is_device_quota(_message(error)):
                raise NotDone(self._unreachable(error)) from None
            raise self._denied(error) from None
        except exceptions.Conflict as error:
            if _code(error) == "ABORTED":  # another request changed the same thing; else ALREADY_EXISTS
                raise NotDone(self._unreachable(error)) from None
            raise self._denied(error) from None
        except (exceptions.ServerError, exceptions.RetryError, RequestException) as error:
            raise Unreachable(self._unreachable(error)) from None
        except exceptions.GoogleAPICallError as error:
            raise self._denied(error) from None
        except GoogleAuthError as error:
            if is_away(error):
                raise Unreachable(self._unreachable(error)) from None
            raise ParamsError(
                f"Google Cloud does not accept the credentials that are here ({_message(error)}); "
                f"run gcloud auth application-default login, or fix GOOGLE_APPLICATION_CREDENTIALS"
            ) from None

    def ask(self, call: Callable[..., A], **request: Any) -> A:
        """Returns the answer to a call that is safe to repeat; Unreachable when all retries have failed."""
        for pause_s in self.retry.pauses():
            try:
                return self.once(call, **request)
            except Unreachable as error:
                log.info("%s; retrying in %.1f s", error, pause_s)
                time.sleep(pause_s)
        return self.once(call, **request)

    def _unreachable(self, error: Exception) -> str:
        kind = type(error).__name__
        return f"Vertex AI in {self.region} does not answer ({kind}: {_message(error)}); try again"

    def _denied(self, error: "GoogleAPICallError") -> Denied:
        message = _message(error)
        text = (
            f"Vertex AI in {self.region} refuses ({message}); "
            f"look at backend in params.yaml, and at what daybreak check says"
        )
        return Denied(text, status=int(error.code or 0), code=_code(error), message=message)


def _code(error: "GoogleAPICallError") -> str:
    """Returns the name of the code of google.rpc, which are more than the statuses of HTTP; "" if unknown."""
    try:
        answer = error.response.json()
    except (AttributeError, ValueError):  # by gRPC, whose exceptions have it
        return str(getattr(error.grpc_status_code, "name", ""))
    return str(answer.get("error", {}).get("status", "")) if isinstance(answer, dict) else ""


def is_on_loopback(endpoint: str) -> bool:
    """Returns whether the endpoint is that of a service on loopback; Google's is reached by HTTPS alone."""
    return endpoint.startswith(("http://", "grpc://"))


def is_away(error: "GoogleAuthError") -> bool:
    """Returns whether the server of tokens did not answer, rather than refused the credentials."""
    from google.auth import exceptions

    # Some clients wrap what their transport raises, with the cause as the only argument.
    causes = (error, error.__cause__, *error.args)
    away = (exceptions.TransportError, exceptions.TimeoutError)
    return bool(error.retryable) or any(isinstance(cause, away) for cause in causes)


def credentials(endpoint: str) -> Any:
    """Returns the credentials of this machine, anonymous ones for a service on loopback.

    Raises ParamsError if this machine has none.
    """
    from google.auth import default
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError

    if is_on_loopback(endpoint):
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    try:
        given, _ = default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    except DefaultCredentialsError:
        raise ParamsError(
            "there are no credentials for Google Cloud here; run gcloud auth application-default login, "
            "or name the key file of a service account in GOOGLE_APPLICATION_CREDENTIALS"
        ) from None
    return given


def _message(error: Exception) -> str:
    """Returns the service's message, without the address that the client prepends."""
    text = " ".join(str(getattr(error, "message", "") or error).split())
    return re.sub(r"^[A-Z]+ http\S+: ", "", text).rstrip(".")[:300]
