"""A v2 server on port 8080 that doubles its input and remembers the rows of each call."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CALLS: list[int] = []
TENSOR = {"datatype": "INT64", "shape": [-1, -1]}


class Handler(BaseHTTPRequestHandler):
    """The three paths that a batching proxy needs, and one that tells what happened."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Readiness, metadata, calls so far."""
        if self.path == "/calls":
            self._answer(CALLS)
            return
        inputs, outputs = [{"name": "x", **TENSOR}], [{"name": "y", **TENSOR}]
        self._answer(
            {"name": "foreign", "platform": "theirs", "inputs": inputs, "outputs": outputs}
        )

    def do_POST(self) -> None:
        """One batch."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        tensor = json.loads(body)["inputs"][0]
        CALLS.append(tensor["shape"][0])
        output = {**tensor, "name": "y", "data": [2 * value for value in tensor["data"]]}
        self._answer({"model_name": "foreign", "outputs": [output]})

    def _answer(self, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
