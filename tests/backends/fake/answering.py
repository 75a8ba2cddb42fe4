"""A container that starts at once, and answers which version it is."""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """What a container of Vertex AI has to answer to."""

    def do_GET(self) -> None:
        self._answer({} if self.path == os.environ["AIP_HEALTH_ROUTE"] else None)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        version = int(os.environ["MODEL_VERSION"])
        asked = self.path == os.environ["AIP_PREDICT_ROUTE"]
        self._answer({"predictions": [version] * len(body["instances"])} if asked else None)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, answer: dict[str, object] | None) -> None:
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(os.environ["AIP_HTTP_PORT"])), Handler).serve_forever()
