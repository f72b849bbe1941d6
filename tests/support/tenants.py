"""Settings and times of the tests in which tenants stand beside each other, in virtual time."""

import asyncio

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from support.sidecar_world import FIXED, PER_ROW

SETTINGS = BatchSettings(policy=PolicyName.DEADLINE, max_batch_size=8, request_timeout_seconds=30.0)
BATCH = FIXED + 8 * PER_ROW
LIMIT = 8 / BATCH
"""Rows a second of the device; some 440."""
POLICIES = list(PolicyName)


def now() -> float:
    """Virtual seconds."""
    return asyncio.get_running_loop().time()
