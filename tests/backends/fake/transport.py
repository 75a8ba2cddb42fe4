"""How calls reach the services: over REST by the client's own routes and messages, and over gRPC.

Routes are read out of the client's gapic classes and requests are parsed into its protos, so what it would
refuse to send or to read is refused here as well. Operations are served under /v1 only, as the service
documents it, not under the /ui/ that the REST clients ask.
"""

import importlib
import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import grpc
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2, json_format

from tests.backends.fake.faults import Refusal

if TYPE_CHECKING:
    from tests.backends.fake.faults import Trouble
    from tests.backends.fake_vertex import FakeVertex

SERVICES = ("job", "model", "endpoint", "prediction")
OPERATIONS = ("get_operation", "list_operations")
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ABORTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


def request_kind(service: str, method: str) -> Any:
    """The class of a method's request."""
    name = "".join(word.title() for word in method.split("_")) + "Request"
    if method in OPERATIONS:
        return getattr(operations_pb2, name)
    types = importlib.import_module(f"google.cloud.aiplatform_v1.types.{service}_service")
    return getattr(types, name)


@dataclass(frozen=True)
class Route:
    """One way to call a method over REST."""

    verb: str
    path: re.Pattern[str]  # its group is the field of the path
    field: str
    body: str
    service: str
    method: str


def routes(home: "FakeVertex") -> Iterator[Route]:
    """All that the client's classes can call and the services here have."""
    for service in SERVICES:
        module = importlib.import_module(
            f"google.cloud.aiplatform_v1.services.{service}_service.transports.rest_base"
        )
        transport = getattr(module, f"_Base{service.title()}ServiceRestTransport")
        for name, kind in vars(transport).items():
            method = re.sub(r"(?<!^)(?=[A-Z])", "_", name.removeprefix("_Base")).lower()
            if name.startswith("_Base") and home.has(method):
                for option in kind._get_http_options():
                    if option["uri"].startswith("/v1/"):
                        yield _route(option, service, method)


def _route(option: dict[str, str], service: str, method: str) -> Route:
    match = re.fullmatch(r"(?P<head>.*)\{(?P<field>[\w.]+)=(?P<form>[^}]*)\}(?P<tail>.*)", option["uri"])
    assert match, option
    form = re.escape(match["form"]).replace(r"\*", "[^/:]+")
    path = f"^{re.escape(match['head'])}({form}){re.escape(match['tail'])}$"
    verb, body = option["method"].upper(), option.get("body", "")
    return Route(verb, re.compile(path), match["field"], body, service, method)


class RestServer(ThreadingHTTPServer):
    """What connections share."""

    daemon_threads = True

    def __init__(self, home: "FakeVertex") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.home, self.routes = home, list(routes(home))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """One connection to the service."""

    protocol_version = "HTTP/1.1"
    server: RestServer

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PATCH(self) -> None:
        self._serve("PATCH")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self, verb: str) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        tried = (
            (route, route.path.match(address.path)) for route in self.server.routes if route.verb == verb
        )
        route, match = next(((route, match) for route, match in tried if match), (None, None))
        if route is None or match is None:
            return self._answer(404, _error(404, "NOT_FOUND", f"no route {verb} {address.path}"))
        home = self.server.home
        home.calls.append(route.method)
        trouble = home.trouble(route.method)
        if trouble and trouble.how in ("refuse", "cut before", "hang"):
            return self._trouble(trouble)
        try:
            request = _request(route, match[1], dict(parse_qsl(address.query)), text)
            if trouble and trouble.how == "late":
                home.late.append(lambda: home.call(route.method, request))
                return self._trouble(trouble)
            message = _as_json(home.call(route.method, request))
        except Refusal as refusal:
            return self._answer(refusal.status, _error(refusal.status, refusal.reason, str(refusal)))
        if trouble:
            return self._trouble(trouble)
        return self._answer(200, message)

    def _trouble(self, trouble: "Trouble") -> None:
        if trouble.how == "refuse":
            return self._answer(trouble.status, _error(trouble.status, trouble.reason, trouble.message))
        if trouble.how in ("hang", "hang after"):
            self.server.home.closing.wait(60)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
        return None

    def _answer(self, status: int, content: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:  # whoever asked has gone
            self.close_connection = True


def _request(route: Route, in_path: str, query: dict[str, str], text: bytes) -> Any:
    """The request: the field of the path, those of the query, and the body."""
    request = request_kind(route.service, route.method)()
    pb = type(request).pb(request) if hasattr(type(request), "pb") else request
    if route.body == "*":
        json_format.Parse(text, pb)
    elif route.body:
        json_format.Parse(text, getattr(pb, route.body))
    fields = {key: value for key, value in query.items() if not key.startswith("$")}
    json_format.ParseDict(fields, pb)
    *outer, last = route.field.split(".")
    for name in outer:
        pb = getattr(pb, name)
    setattr(pb, last, in_path)
    return request


def _as_json(answer: Any) -> bytes:
    if answer is None:
        return b"{}"
    pb = type(answer).pb(answer) if hasattr(type(answer), "pb") else answer
    return json_format.MessageToJson(pb).encode()


def _error(status: int, reason: str, message: str) -> bytes:
    return json.dumps({"error": {"code": status, "status": reason, "message": message}}).encode()


class GrpcServer(grpc.GenericRpcHandler):
    """The same services over gRPC, without TLS."""

    def __init__(self, home: "FakeVertex") -> None:
        self.home = home
        self.server = grpc.server(ThreadPoolExecutor(8), handlers=(self,))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def close(self) -> None:
        self.server.stop(None)

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a path such as /google.cloud.aiplatform.v1.JobService/CreateCustomJob."""
        package, name = handler_call_details.method.strip("/").split("/")
        method = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        if not self.home.has(method):
            return None
        kind = request_kind(package.rpartition(".")[2].removesuffix("Service").lower(), method)
        read = kind.deserialize if hasattr(kind, "deserialize") else kind.FromString

        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            self.home.calls.append(method)
            trouble = self.home.trouble(method)
            if trouble and trouble.how in ("refuse", "cut before", "hang"):
                self._trouble(trouble, context)
            try:
                answer = self.home.call(method, request)
            except Refusal as refusal:
                context.abort(CODES[refusal.status], str(refusal))
            if trouble:
                self._trouble(trouble, context)
            return answer

        return grpc.unary_unary_rpc_method_handler(handle, read, _as_bytes)

    def _trouble(self, trouble: "Trouble", context: grpc.ServicerContext) -> None:
        if trouble.how in ("hang", "hang after"):
            self.home.closing.wait(60)
        context.abort(CODES[trouble.status], trouble.message)


def _as_bytes(answer: Any) -> bytes:
    if answer is None:
        return empty_pb2.Empty().SerializeToString()
    pb = type(answer).pb(answer) if hasattr(type(answer), "pb") else answer
    return bytes(pb.SerializeToString())
