"""Namespaces in which a policy denies everything, and pods that try to reach others."""

import json
from typing import Any, Final

from build_images import SIDECAR
from cluster.kubernetes import Cluster
from support.kube import Kube

CALLER: Final = "caller"
"""The name of a pod, and of its container."""

_SLEEP: Final = """\
import signal, sys, threading
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
threading.Event().wait()
"""
_REACH: Final = """\
import contextlib, json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def reached(place):
    with contextlib.suppress(OSError), socket.create_connection(place, timeout=3):
        return True
    return False
places = [tuple(place) for place in json.loads(sys.argv[1])]
with ThreadPoolExecutor(len(places)) as several:
    print(json.dumps(list(several.map(reached, places))))
"""
_ASK: Final = """\
import contextlib, http.client, json, socket, sys, threading, time
address, port, path, body = json.loads(sys.argv[1])
while True:
    # What enforces policies hears of a new pod in a moment, and refuses it until then.
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=3):
        break
    time.sleep(0.1)
def ask():
    connection = http.client.HTTPConnection(address, port, timeout=60)
    while True:
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200 or not answer.read():
            print(answer.status, answer.read(), flush=True)
            raise SystemExit(1)
callers = [threading.Thread(target=ask, daemon=True) for _ in range(64)]
for caller in callers:
    caller.start()
while all(caller.is_alive() for caller in callers):
    callers[0].join(0.2)
sys.exit("a caller got no answer")
"""

Place = tuple[str, int]


def deny_all(cluster: Cluster, namespace: str) -> None:
    """Lets nothing into the namespace's pods and nothing out, but what other policies open."""
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "deny-all"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
    }
    Kube(cluster, namespace).apply(policy)


async def put_caller(kube: Kube) -> None:
    """A pod that waits for what it is to reach."""
    _put(kube, CALLER, "-c", _SLEEP)
    await kube.eventually("the caller runs", lambda: runs(kube, CALLER), within=60)


def put_load(kube: Kube, name: str, place: Place, path: str, body: dict[str, Any]) -> None:
    """A pod of 64 callers that ask in turn, and which ends when one gets anything but 200."""
    _put(kube, name, "-c", _ASK, json.dumps([*place, path, json.dumps(body)]))


def runs(kube: Kube, pod: str) -> bool:
    """Whether it has begun and has not ended."""
    return _phase(kube, pod) == "Running"


def has_ended(kube: Kube, pod: str) -> bool:
    """Whether all its processes have ended, well or not."""
    return _phase(kube, pod) in ("Succeeded", "Failed")


def reached(kube: Kube, pod: str, *places: Place, container: str = CALLER) -> list[bool]:
    """Which of these addresses and ports take a connection from a container."""
    said = kube.kubectl(
        *("exec", pod, f"--container={container}", "--"),
        *("python", "-c", _REACH, json.dumps(places)),
    )
    found: list[bool] = json.loads(said)
    return found


def _phase(kube: Kube, pod: str) -> str:
    return str(kube.get("pod", pod)["status"].get("phase"))


def _put(kube: Kube, name: str, *words: str) -> None:
    container = {
        "name": name,
        "image": SIDECAR.tag(),
        "imagePullPolicy": "Never",
        "command": ["python", *words],
    }
    spec = {"containers": [container], "restartPolicy": "Never"}
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
