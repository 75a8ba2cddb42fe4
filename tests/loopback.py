"""A server on loopback, of a handler of http.server."""

import os
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


class Quiet(BaseHTTPRequestHandler):
    """Handler that logs nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def make_certificate(folder: Path) -> Path:
    """A file with a key and the certificate of 127.0.0.1 that it signed itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    made = x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    address = x509.IPAddress(ip_address("127.0.0.1"))
    made = made.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = folder / "certificate.pem"
    path.write_bytes(private + made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return path


@contextmanager
def told(given: Mapping[str, str], *, forget: Callable[[], object]) -> Iterator[None]:
    """Has this process and its children find a service by these variables.

    `forget` clears what a client remembers, which would go on with another address.
    """
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    forget()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def served(
    handler: Callable[..., BaseHTTPRequestHandler], *, certificate: Path | None = None
) -> Iterator[str]:
    """The address of a server with this handler, 127.0.0.1:PORT; with a certificate, of HTTPS."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
