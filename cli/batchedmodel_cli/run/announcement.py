"""Says how to reach the service once it is ready, or why the model cannot be served.

Called by `run`. Pure: log lines in, lines to print out. The batcher's lines give ports, readiness,
a request that works and a failed model, because no handler can print among them. The model server's
lines say whether the model computes on the CPU.
"""

import json
import re
import shlex
from typing import Final

from batchedmodel_contract.link.model_state import ON_THE_CPU, ModelState
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes.listening import authority, reachable
from batchedmodel_kube.manifest.manifest import BatchedModel

_LISTENING: Final = re.compile(
    r"\blistening: data port (\d+), admin port (\d+), (compiled|interpreted)"
)
_FORMS: Final = {
    "compiled": "compiled (plain Python: .venv/bin/batchedmodel run, or the wheel py3-none-any)",
    "interpreted": "plain Python (compiled, for less CPU: make compiled, or a compiled wheel)",
}
"""How each form of the batcher is called, and how one gets the other."""
_READY: Final = re.compile(r"\bready: (\S+) on http://")
# Matched from the line's start, because any line may quote a caller's text further on.
_EXAMPLE: Final = re.compile(r"(?:\S+ )?INFO try: (.+)")
_CANNOT_SERVE: Final = re.compile(
    rf"(?:\S+ )?[A-Z]+ model not ready: the model is {ModelState.FAILED}(?:: (.*))?"
)
_ON_THE_CPU: Final = re.compile(rf"\S+ ERROR {ON_THE_CPU}: (.*)")


class Announcer:
    """Follows the batcher's lines; speaks when it is first ready, and again on other ports."""

    def __init__(self, manifest: BatchedModel, host: str) -> None:
        self._manifest = manifest
        self._host = host
        self._bound: tuple[int, int] | None = None
        self._example: str | None = None
        self._form = ""
        self._announced: tuple[int, int] | None = None
        """Data port and admin port."""

    @property
    def was_ready(self) -> bool:
        """Whether the service could be reached once."""
        return self._announced is not None

    @property
    def admin_address(self) -> tuple[str, int] | None:
        """Under which this machine reaches the admin port; None before the batcher listens."""
        return None if self._bound is None else (reachable(self._host), self._bound[1])

    def after(self, line: str) -> tuple[str, ...]:
        """What to print after this line of the batcher's; mostly nothing."""
        listening = _LISTENING.search(line)
        if listening is not None:
            self._bound = int(listening[1]), int(listening[2])
            self._form = _FORMS[listening[3]]
        example = _EXAMPLE.match(line)
        if example is not None:
            self._example = example[1]
        ready = _READY.search(line)
        if ready is None or ready[1] != self._manifest.name:
            return ()
        if self._bound is None or self._bound == self._announced:
            return ()
        self._announced = self._bound
        return announcement(self._manifest, self._host, *self._bound, self._form, self._example)


def why_not_served(line: str) -> str | None:
    """The reason, if a batcher's line says that its model failed; otherwise None."""
    match = _CANNOT_SERVE.match(line)
    return None if match is None else match[1] or "it gives no reason"


def why_on_the_cpu(line: str) -> str | None:
    """The reason, if a model server's line says that its model computes there; otherwise None."""
    match = _ON_THE_CPU.match(line)
    return None if match is None else match[1]


def announcement(
    manifest: BatchedModel, host: str, data: int, admin: int, form: str, example: str | None = None
) -> tuple[str, ...]:
    """The lines that say where the service is and how to try it; `data` and `admin` are ports.

    `example`: a command that the batcher says to work.
    """
    service = url(host, data)
    return (
        "",
        f"{manifest.name} is ready",
        f"  service  {service}",
        f"  admin    {url(host, admin)} (metrics: /metrics)",
        f"  form     {form}",
        *(() if example is None else (f"  paths    {service}/ and {service}/openapi.json",)),
        "  try it:",
        "",
        example or curl_line(manifest, service),
        "",
        "  Ctrl-C stops it",
        "",
    )


def curl_line(manifest: BatchedModel, service: str) -> str:
    """A command that works in front of a server of one's own; ours says one by itself."""
    model = manifest.spec.model
    if model.protocol is ServerProtocol.V1:
        return f"curl -s {shlex.quote(f'{service}/v1/models/{manifest.name}')}"
    if model.protocol is not ServerProtocol.OPENAI:
        return f"curl -s {shlex.quote(f'{service}/v2/models/{manifest.name}')}"
    if manifest.spec.generation is not None:
        messages = [{"role": "user", "content": "What is batching?"}]
        chat = {"model": manifest.name, "stream": True, "messages": messages}
        return _post(f"{service}/v1/chat/completions", chat)
    body = {"model": manifest.name, "input": "A sentence to embed."}
    return _post(f"{service}/v1/embeddings", body)


def url(host: str, port: int) -> str:
    """The address under which this machine reaches a service that listens on `host`."""
    return f"http://{authority(reachable(host), port)}"


def _post(target: str, body: object) -> str:
    # Without -N, parts of a stream are shown late.
    sent = f"-H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"
    return f"curl -sN {shlex.quote(target)} {sent}"
