"""Tests and benchmarks speak of the private hop in records; its wire is known to one module.

The others that are listed test a part of the wire itself, and go with it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORDS = {
    "batchedmodel_contract.generation.frames": {
        "Cancel", "Configure", "Finish", "Frame", "Refusal", "Refused", "Sampling", "StepReport",
        "Submit", "Token", "MOST_LOGPROBS",
    },
    "batchedmodel_contract.link.hello": {"MAX_VERSION"},
    "batchedmodel_contract.link.model_frames": {"State"},
    "batchedmodel_contract.link.model_state": {"ModelState", "ON_THE_CPU"},
}  # fmt: skip
"""What may be imported of each module that has the wire."""
LINK = "batchedmodel_contract.link"
"""A package of the wire alone."""
CLIENTS = {"UnixConnector", "UnixSite", "open_unix_connection", "start_unix_server"}
THE_ONE = "tests/support/private_hop.py"
OF_THE_WIRE = {
    "tests/support/link_server.py",
    "tests/unit/contract/test_lora.py",
    "tests/unit/contract/inference/test_params.py",
    "tests/unit/contract/link/test_batches.py",
    "tests/unit/contract/link/test_connection.py",
    "tests/unit/contract/link/test_model_frames.py",
    "tests/unit/contract/generation/test_frames.py",
    "tests/unit/model_server/lifecycle/test_lifecycle.py",
    "tests/unit/model_server/link/test_listener.py",
    "tests/unit/sidecar/backends/native/test_batches.py",
    "tests/unit/sidecar/backends/native/test_link.py",
    "tests/unit/sidecar/backends/native/test_no_queue_behind_large.py",
    "tests/unit/sidecar/generation/native/test_engines.py",
}


def wire_names(tree: ast.AST) -> Iterator[str]:
    """Names of the wire that a module uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            allowed = RECORDS.get(node.module)
            for name in (alias.name for alias in node.names):
                whole = f"{node.module}.{name}"
                if (
                    (allowed is None and f"{whole}.".startswith(f"{LINK}."))
                    or whole in RECORDS
                    or (allowed is not None and name not in allowed)
                ):
                    yield name
        elif isinstance(node, ast.Attribute) and node.attr in CLIENTS:
            yield node.attr


def test_one_module_of_the_tests_knows_the_wire_of_the_private_hop() -> None:
    users = {
        file.relative_to(ROOT).as_posix()
        for folder in ("tests", "bench")
        for file in (ROOT / folder).rglob("*.py")
        if any(wire_names(ast.parse(file.read_text("utf-8"))))
    }
    assert THE_ONE in users
    assert users - {THE_ONE} <= OF_THE_WIRE
    assert users >= OF_THE_WIRE, "what speaks it no more is listed no more"
