"""Checks whether Vertex AI would accept a job as params.yaml has it, before any money is spent.

`daybreak check` checks the credentials, the project in each region of the plan, the bucket, and the
image. Each check is a call that changes nothing but an empty file in the bucket, which is removed again.
"""

from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus

from daybreak.backends.staging import writable
from daybreak.contract.errors import JobError, ParamsError, PipelineError
from daybreak.extensions.vertex.client import credentials
from daybreak.extensions.vertex.image import look_up
from daybreak.extensions.vertex.job_spec import VertexSite, unattached
from daybreak.extensions.vertex.service import Service


def preflight(
    site: VertexSite, service: Service, *, regions: Sequence[str]
) -> Iterator[tuple[str, bool, str]]:
    """Yields checks as (name, passed, result or remedy).

    Without credentials nothing else is checked; other failures do not stop the checks after them.
    """
    checks: list[tuple[str, Callable[[], str]]] = [
        ("credentials", lambda: _who(service.endpoint)),
        *((f"vertex in {region}", _reach(site, service, region)) for region in regions),
        ("bucket", lambda: writable(site.bucket, on_loopback=service.is_on_loopback)),
        ("image", lambda: _image(site.image, endpoint=service.endpoint)),
    ]
    if site.tpu_image:
        checks.append(("image for TPUs", lambda: _image(site.tpu_image, endpoint=service.endpoint)))
    checks.append(("membership", lambda: "a job has all its machines or none; it cannot grow or shrink"))
    for name, check in checks:
        try:
            yield name, True, check()
        except PipelineError as error:
            yield name, False, str(error)
            if name == "credentials":
                return


def _who(endpoint: str) -> str:
    given = credentials(endpoint)
    return str(getattr(given, "service_account_email", "") or type(given).__module__)


def _reach(site: VertexSite, service: Service, region: str) -> Callable[[], str]:
    def check() -> str:
        service.find(region, daybreak="check")
        if why := unattached(site, region):
            raise ParamsError(why)
        return f"project {site.project} answers"

    return check


def _image(image: str, *, endpoint: str) -> str:
    """Checks that the registry has the image."""
    status, digest = look_up(image, endpoint=endpoint)
    if status == HTTPStatus.NOT_FOUND:
        raise ParamsError(f"backend.image {image} does not exist; push it (docs/vertex.md), or fix its tag")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise ParamsError(
            f"backend.image {image} may not be read with the credentials that are here; give them, and "
            f"Vertex AI's service agent, the role roles/artifactregistry.reader (docs/vertex.md)"
        )
    if status != HTTPStatus.OK:
        raise JobError(f"the registry of backend.image {image} answers {status}; try again later")
    return f"{image} is {digest or 'there'}"
