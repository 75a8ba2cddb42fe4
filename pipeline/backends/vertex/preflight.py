"""Checks whether Vertex AI would accept a job as params.yaml has it, before any money is spent.

`python -m pipeline check` checks the credentials, the project in each region of the plan, the bucket, and the
image. Each check is a call that changes nothing but an empty file in the bucket, which is removed again.
"""

from collections.abc import Callable, Iterator, Sequence

from pipeline.backends.staging import writable
from pipeline.backends.vertex.client import credentials
from pipeline.backends.vertex.job_spec import Site, unattached
from pipeline.backends.vertex.service import Service
from pipeline.contract.errors import JobError, ParamsError, PipelineError

MANIFESTS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.docker.distribution.manifest.v2+json"
)
TIMEOUT_S = (10, 30)  # to connect, to answer


def preflight(site: Site, service: Service, *, regions: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
    """Yields for each check its name, whether it passed, and the result or what to do.

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


def _reach(site: Site, service: Service, region: str) -> Callable[[], str]:
    def check() -> str:
        service.find(region, daybreak="check")
        if why := unattached(site, region):
            raise ParamsError(why)
        return f"project {site.project} answers"

    return check


def _image(image: str, *, endpoint: str) -> str:
    """Checks that the registry has the image."""
    import requests

    address = manifest_of(image)
    try:
        answer = requests.get(
            address, headers={"Accept": MANIFESTS, **_token(image, endpoint)}, timeout=TIMEOUT_S
        )
    except requests.RequestException as error:
        raise JobError(
            f"the registry of backend.image {image} does not answer ({type(error).__name__}); try again, "
            f"or look at the name of its host"
        ) from None
    if answer.status_code == 404:
        raise ParamsError(f"backend.image {image} does not exist; push it (docs/vertex.md), or fix its tag")
    if answer.status_code in (401, 403):
        raise ParamsError(
            f"backend.image {image} may not be read with the credentials that are here; give them, and "
            f"Vertex AI's service agent, the role roles/artifactregistry.reader (docs/vertex.md)"
        )
    if answer.status_code != 200:
        raise JobError(f"the registry of backend.image {image} answers {answer.status_code}; try again later")
    return f"{image} is {answer.headers.get('Docker-Content-Digest', 'there')}"


def manifest_of(image: str) -> str:
    """Returns the address of the manifest of an image in its registry; ParamsError if the name has no host.

    >>> manifest_of("europe-west4-docker.pkg.dev/shop/images/daybreak:7")
    'https://europe-west4-docker.pkg.dev/v2/shop/images/daybreak/manifests/7'
    """
    host, _, rest = image.partition("/")
    name, at, digest = rest.partition("@")
    if not rest or ("." not in host and ":" not in host):
        raise ParamsError(
            f"backend.image {image} names no registry; write it as "
            f"REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG"
        )
    base, _, tag = (name, "", digest) if at else name.partition(":")
    scheme = "http" if host.startswith(("127.0.0.1:", "localhost:")) else "https"
    return f"{scheme}://{host}/v2/{base}/manifests/{tag or 'latest'}"


def _token(image: str, endpoint: str) -> dict[str, str]:
    """Returns the header that authorizes the request, where the registry is Google's."""
    host = image.partition("/")[0]
    if not host.endswith((".pkg.dev", "gcr.io")):
        return {}
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    given = credentials(endpoint)
    try:
        given.refresh(Request())
    except GoogleAuthError as error:
        raise ParamsError(
            f"Google Cloud does not accept the credentials that are here ({_brief(error)}); "
            f"run gcloud auth application-default login"
        ) from None
    return {"Authorization": f"Bearer {given.token}"}


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
