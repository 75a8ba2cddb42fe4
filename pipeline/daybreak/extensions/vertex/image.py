"""Looks an image up in its registry, without pulling it, as `daybreak check` does."""

from daybreak.contract.errors import JobError, ParamsError

MANIFESTS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.docker.distribution.manifest.v2+json"
)
TIMEOUT_S = (10, 30)  # to connect, to answer


def look_up(image: str, *, endpoint: str = "") -> tuple[int, str]:
    """Returns the HTTP status that the registry has for the image, and the image's digest, "" if not shown.

    Raises ParamsError where the name has no registry or there are no credentials for Google's, JobError where
    the registry does not answer. `endpoint` is Vertex AI's; an endpoint on loopback has the images itself.
    """
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
    return answer.status_code, answer.headers.get("Docker-Content-Digest", "")


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
    if host != "gcr.io" and not host.endswith((".pkg.dev", ".gcr.io")):
        return {}
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    from daybreak.extensions.vertex.client import credentials, is_away

    given = credentials(endpoint)
    try:
        given.refresh(Request())
    except GoogleAuthError as error:
        said = " ".join(str(error).split())[:200]
        if is_away(error):
            raise JobError(f"the server of Google's tokens does not answer ({said}); try again") from None
        raise ParamsError(
            f"Google Cloud does not accept the credentials that are here ({type(error).__name__}: {said}); "
            f"run gcloud auth application-default login"
        ) from None
    return {"Authorization": f"Bearer {given.token}"}
