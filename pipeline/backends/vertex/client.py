"""How is a service asked that may not answer? Each call with a deadline, and again with back-off.

No call of Google's clients has a deadline by itself, and only getters are tried again. Here a call ends in an
answer, in `Unanswered` (it may have been done or not), or in `Denied`. Calls that
change the world are not tried again here: whoever makes one first looks at what became of it.
"""

import logging
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pipeline.backends.vertex.error_codes import is_device_quota
from pipeline.contract.errors import JobError, ParamsError

if TYPE_CHECKING:
    from google.api_core.exceptions import GoogleAPICallError
    from google.api_core.operations_v1 import AbstractOperationsClient
    from google.cloud.aiplatform_v1.services.endpoint_service import EndpointServiceClient
    from google.cloud.aiplatform_v1.services.job_service import JobServiceClient
    from google.cloud.aiplatform_v1.services.model_service import ModelServiceClient

log = logging.getLogger(__name__)

A = TypeVar("A")


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for what."""

    call_s: float = 30.0  # for the answer to one call
    first_pause_s: float = 1.0  # between two calls; twice as long each time, up to 32 times
    give_up_s: float = 240.0  # for any answer
    settle_s: float = 60.0  # until a request whose reply was lost has made its job, or never will
    error_s: float = 90.0  # until a job that has ended says why
    cancel_s: float = 60.0  # at most, until a job that was cancelled has ended

    def pauses(self) -> Iterator[float]:
        """Seconds to wait before each further try, until giving up; a fifth is left to chance."""
        until = time.monotonic() + self.give_up_s
        pause_s = self.first_pause_s
        while time.monotonic() + pause_s < until:
            yield pause_s * random.uniform(0.8, 1.2)
            pause_s = min(2 * pause_s, 32 * self.first_pause_s)


class Unanswered(JobError):
    """The service did not answer, or not in time; it may have done what it was asked."""


class TurnedAway(Unanswered):
    """The service asked to come back later, and has done nothing."""


class Denied(JobError):
    """The service answered no, and asking again will not help; `status` is HTTP's."""

    def __init__(self, text: str, *, status: int, message: str) -> None:
        super().__init__(text)
        self.status, self.message = status, message


class Calls:
    """The calls to Vertex AI in one region. A client is made at the first: their import takes seconds."""

    def __init__(self, *, region: str, endpoint: str, patience: Patience) -> None:
        self.region, self.endpoint, self.patience = region, endpoint, patience

    @cached_property
    def client(self) -> "JobServiceClient":
        """The client for jobs; ParamsError without credentials."""
        from google.cloud.aiplatform_v1.services.job_service import JobServiceClient

        return self._made(JobServiceClient)

    @cached_property
    def models(self) -> "ModelServiceClient":
        """The client for models."""
        from google.cloud.aiplatform_v1.services.model_service import ModelServiceClient

        return self._made(ModelServiceClient)

    @cached_property
    def endpoints(self) -> "EndpointServiceClient":
        """The client for endpoints."""
        from google.cloud.aiplatform_v1.services.endpoint_service import EndpointServiceClient

        return self._made(EndpointServiceClient)

    @cached_property
    def operations(self) -> "AbstractOperationsClient":
        """The client for long-running operations, at /v1, where the service documents them.

        Those of the clients above ask at /ui, which it does not.
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
        """A client of that kind; REST unless the endpoint begins with grpc:// (on loopback, without TLS)."""
        from google.api_core.client_options import ClientOptions

        made: Any = kind
        if self.endpoint.startswith("grpc://"):
            import grpc  # type: ignore[import-untyped]

            channel = grpc.insecure_channel(self.endpoint.removeprefix("grpc://"))
            return cast(A, made(transport=made.get_transport_class("grpc")(channel=channel)))
        options = ClientOptions(api_endpoint=self._address)
        return cast(A, made(credentials=credentials(self.endpoint), client_options=options, transport="rest"))

    def once(self, call: Callable[..., A], **request: Any) -> A:
        """The answer to one call; Unanswered without one, Denied if it is no."""
        from google.api_core import exceptions
        from google.auth.exceptions import GoogleAuthError
        from requests.exceptions import RequestException

        try:
            return call(timeout=self.patience.call_s, retry=None, **request)
        except exceptions.TooManyRequests as error:
            if not is_device_quota(_told(error)):
                raise TurnedAway(self._away(error)) from None
            raise self._denied(error) from None
        except (exceptions.ServerError, exceptions.RetryError, RequestException) as error:
            raise Unanswered(self._away(error)) from None
        except exceptions.GoogleAPICallError as error:
            raise self._denied(error) from None
        except GoogleAuthError as error:
            if getattr(error, "retryable", False):
                raise Unanswered(self._away(error)) from None
            raise ParamsError(
                f"Google Cloud does not take the credentials that are here ({_told(error)}); "
                f"run gcloud auth application-default login, or mend GOOGLE_APPLICATION_CREDENTIALS"
            ) from None

    def ask(self, call: Callable[..., A], **request: Any) -> A:
        """The answer to a call that may be made any number of times; Unanswered after all patience."""
        for pause_s in self.patience.pauses():
            try:
                return self.once(call, **request)
            except Unanswered as error:
                log.info("%s; asked again in %.1f s", error, pause_s)
                time.sleep(pause_s)
        return self.once(call, **request)

    def _away(self, error: Exception) -> str:
        kind = type(error).__name__
        return f"Vertex AI in {self.region} does not answer ({kind}: {_told(error)}); try again"

    def _denied(self, error: "GoogleAPICallError") -> Denied:
        told = _told(error)
        text = (
            f"Vertex AI in {self.region} refuses ({told}); "
            f"look at backend in params.yaml, and at what python -m pipeline check says"
        )
        return Denied(text, status=int(error.code or 0), message=told)


def credentials(endpoint: str) -> Any:
    """Who asks: the default of this machine, nobody for a service on loopback; ParamsError without any."""
    from google.auth import default
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError

    if endpoint.startswith(("http://", "grpc://")):
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    try:
        found, _ = default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    except DefaultCredentialsError:
        raise ParamsError(
            "there are no credentials for Google Cloud here; run gcloud auth application-default login, "
            "or name the key file of a service account in GOOGLE_APPLICATION_CREDENTIALS"
        ) from None
    return found


def _told(error: Exception) -> str:
    """What the service says, without the address that the client puts before it."""
    text = " ".join(str(getattr(error, "message", "") or error).split())
    return re.sub(r"^[A-Z]+ http\S+: ", "", text).rstrip(".")[:300]
