"""The batch settings as a running sidecar holds them: effective values in base units.

The operator and `batchedmodel run` derive them from the spec and write them as one JSON file into a
folder that the sidecar watches; policies take them as `configure`'s argument.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.spec import Batching, PolicyName

FILE_NAME: Final = "batching.json"
"""The file in the watched folder; in a pod, the key of the ConfigMap."""

_SMALLEST_QUEUE: Final = 2048  # the longest list that an OpenAI client may send in one request
_QUEUED_BATCHES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """What a policy may do. Sizes in rows, times in seconds."""

    policy: PolicyName = PolicyName.GREEDY
    max_batch_size: int = 32
    max_wait_seconds: float = 0.005
    max_queue_size: int = _SMALLEST_QUEUE
    request_timeout_seconds: float = 30.0
    length_buckets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_batch_size < 1 or self.max_queue_size < self.max_batch_size:
            raise InvalidInput("maxBatchSize", "must be 1 to maxQueueSize", self.max_batch_size)
        if not 0 <= self.max_wait_seconds < self.request_timeout_seconds:
            raise InvalidInput(
                "maxWait", "must be 0 to the request time-out", self.max_wait_seconds
            )
        if list(self.length_buckets) != sorted(set(self.length_buckets)):
            raise InvalidInput("lengthBuckets", "must ascend", self.length_buckets)

    @classmethod
    def of(cls, batching: Batching) -> "BatchSettings":
        """The effective settings of a manifest's `spec.batching`."""
        queue = batching.max_queue_size
        if queue is None:
            queue = max(_SMALLEST_QUEUE, _QUEUED_BATCHES * batching.max_batch_size)
        return cls(
            policy=batching.policy,
            max_batch_size=batching.max_batch_size,
            max_wait_seconds=batching.max_wait_milliseconds / 1000,
            max_queue_size=queue,
            request_timeout_seconds=float(batching.request_timeout_seconds),
            length_buckets=batching.length_buckets,
        )

    def to_json(self) -> str:
        """The text of the settings file; equal settings give equal text."""
        # 30 and 30.0 are equal settings, so they must not differ as text.
        seconds = {
            "max_wait_seconds": float(self.max_wait_seconds),
            "request_timeout_seconds": float(self.request_timeout_seconds),
        }
        return json.dumps(asdict(self) | seconds, sort_keys=True)

    def digest(self) -> str:
        """Short hash by which everybody names these settings."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


def settings_from_json(text: str | bytes) -> BatchSettings:
    """The settings in a file's text; raises `InvalidInput` when they cannot be used."""
    try:
        mapping: Mapping[str, Any] = json.loads(text)
        return BatchSettings(
            policy=PolicyName(mapping["policy"]),
            max_batch_size=int(mapping["max_batch_size"]),
            max_wait_seconds=float(mapping["max_wait_seconds"]),
            max_queue_size=int(mapping["max_queue_size"]),
            request_timeout_seconds=float(mapping["request_timeout_seconds"]),
            length_buckets=tuple(int(edge) for edge in mapping["length_buckets"]),
        )
    except InvalidInput:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(FILE_NAME, f"cannot be read: {error!r}") from error
