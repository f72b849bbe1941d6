"""The namespaces that a cluster lives in: network, mounts and processes of its own.

Nothing in them shows outside but one network interface, the cable between this machine and the
cluster. The machine's netfilter rules are never touched: kube-proxy and the network plugins write
theirs into the cluster's own network namespace.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from cluster import init
from cluster.commands import last_lines, run
from cluster.errors import StartFailed, Unavailable
from cluster.leftovers import clean_up, remove_leftovers
from cluster.networks import Families
from cluster.packages import require_root
from cluster.settings import Settings
from cluster.slots import Slot, claimed_slot

_UPLINK = "uplink"  # the cluster's end of the cable


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Open namespaces, and the folders of the cluster that lives in them."""

    slot: Slot
    init: int
    """Process id, on this machine, of the namespaces' first process."""
    folder: Path
    """State of this run; gone after it."""
    logs: Path
    """One file per program; kept until the slot is used again."""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """All that `start` has started; they end with the namespaces, and are waited for then."""

    def entered(self, words: Sequence[str | Path]) -> list[str]:
        """The command that runs `words` inside."""
        enter = ["nsenter", "--target", str(self.init), "--mount", "--net", "--pid", "--"]
        return [*enter, *(str(word) for word in words)]

    def start(self, words: Sequence[str | Path], *, log: Path) -> subprocess.Popen[bytes]:
        """Starts a long-running program inside, its output appended to the file `log`.

        What is returned is its guard on this side; the program itself is the guard's only child.
        """
        with log.open("ab") as output:
            guard = subprocess.Popen(
                self.entered(words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must not reach it before the clean-up begins
            )
        self.started.append(guard)
        return guard

    @property
    def first_process(self) -> Path:
        """File with `init`, for other processes that want to enter."""
        return self.folder / "init"

    def run(self, *words: str | Path, timeout_s: float = 120.0) -> str:
        """Runs a command inside and returns its standard output."""
        return run(self.entered(words), timeout_s=timeout_s)


@contextmanager
def open_namespace(
    settings: Settings, *, families: Families = Families.IPV4
) -> Iterator[Namespace]:
    """Opens namespaces in a free slot; at the end of the block all in them is gone.

    Raises:
        Unavailable: not root, all slots taken, or this machine allows no namespaces.
        StartFailed: they could not be made fit for a cluster.
    """
    require_root()
    clean_up(settings)
    with ExitStack() as stack:
        slot = stack.enter_context(claimed_slot(families))
        remove_leftovers(settings, slot)
        logs = settings.log_folder(slot.number)
        logs.mkdir(parents=True, exist_ok=True)
        for old in logs.iterdir():
            old.unlink()
        settings.run_folder(slot.number).mkdir(parents=True)
        stack.callback(remove_leftovers, settings, slot)
        started = stack.enter_context(_waited_for())
        process = stack.enter_context(_first_process(settings))
        namespace = replace(_namespace(settings, slot, init=process), started=started)
        _connect(namespace)
        namespace.first_process.write_text(str(process))
        yield namespace


def existing_namespace(settings: Settings, slot: Slot) -> Namespace | None:
    """The open namespaces in `slot`, which another process holds; None if there are none."""
    namespace = _namespace(settings, slot, init=0)
    try:
        return replace(namespace, init=int(namespace.first_process.read_text()))
    except (FileNotFoundError, ValueError):
        return None


def _namespace(settings: Settings, slot: Slot, *, init: int) -> Namespace:
    return Namespace(
        slot=slot,
        init=init,
        folder=settings.run_folder(slot.number),
        logs=settings.log_folder(slot.number),
    )


@contextmanager
def _waited_for() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    try:
        yield started
    finally:
        for guard in started:
            guard.wait()


@contextmanager
def _first_process(settings: Settings) -> Iterator[int]:
    visible = [str(settings.cache)] + ([str(settings.assets)] if settings.assets else [])
    unshare = subprocess.Popen(
        [
            *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *(sys.executable, "-I", "-S", init.__file__, *visible),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is ours to handle, in our order
    )
    assert unshare.stdin is not None
    assert unshare.stdout is not None
    assert unshare.stderr is not None
    try:
        if unshare.stdout.readline() != "ready\n":
            _, complaint = unshare.communicate()
            reason = f"the namespaces cannot be made: {last_lines(complaint)}"
            raise Unavailable(reason) if "unshare" in complaint else StartFailed(reason)
        yield int(Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text())
    finally:
        with suppress(BrokenPipeError):
            unshare.stdin.close()
        try:
            unshare.wait(timeout=10)
        except subprocess.TimeoutExpired:
            unshare.kill()  # takes process 1 along: --kill-child
            unshare.wait()
        unshare.stdout.close()
        unshare.stderr.close()


def _connect(namespace: Namespace) -> None:
    slot = namespace.slot
    run(
        [
            *("ip", "link", "add", slot.interface, "type", "veth"),
            *("peer", "name", _UPLINK, "netns", str(namespace.init)),
        ]
    )
    run(["ip", "link", "set", slot.interface, "up"])
    namespace.run("ip", "link", "set", _UPLINK, "up")
    for one in slot.networks:
        # Such addresses are looked for on the cable first, for which one waits two seconds.
        found = ("nodad",) if one.version == 6 else ()
        address = f"{one.host_address}/{one.cable}"
        run(["ip", "address", "add", address, "dev", slot.interface, *found])
        address = f"{one.node_address}/{one.cable}"
        namespace.run("ip", "address", "add", address, "dev", _UPLINK, *found)
        namespace.run("ip", "route", "add", "default", "via", one.host_address)
        for network in (one.pods, one.services):
            run(["ip", "route", "add", network, "via", one.node_address, "dev", slot.interface])
