"""The batch settings as a running sidecar holds them: effective values in base units.

The operator and `batchedmodel run` derive them from the spec, whose fields have the same rules, and
write them as one JSON file into a folder that the sidecar watches; policies take them as
`configure`'s argument.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from batchedmodel_contract.invalid_input import InvalidInput, readable
from batchedmodel_contract.manifest.tenants import (
    HEADER_NAME,
    NETWORKS,
    WEIGHTS,
    TenantsBy,
    TenantSettings,
)
from batchedmodel_contract.schema.reading import declarations, ruled, setting
from batchedmodel_contract.schema.rules import Broken, Choice, Real, Text, Truth, Whole
from batchedmodel_contract.schema.shapes import AscendingWholes

FILE_NAME: Final = "batching.json"
"""The file in the watched folder; in a pod, the key of the ConfigMap."""

MAX_BATCH_SIZE: Final = 4096
MAX_LENGTH: Final = 1_048_576
WAIT_MILLISECONDS: Final = Whole(minimum=0, maximum=60_000)
TARGET_MILLISECONDS: Final = Whole(minimum=1, maximum=600_000)
TOKEN_MILLISECONDS: Final = Whole(minimum=1, maximum=60_000)
TIMEOUT_SECONDS: Final = Whole(minimum=1, maximum=3600)
SMALLEST_QUEUE: Final = 2048  # the longest list that an OpenAI client may send in one request
_BATCHES_AT_ONCE: Final = 2  # of each worker
_SPARE: Final = 8


class PolicyName(StrEnum):
    """How batches are formed; `Batching.policy` tells what each does."""

    DEADLINE = "Deadline"
    GREEDY = "Greedy"
    WINDOW = "Window"


class Lateness(StrEnum):
    """What becomes of work that will miss the latency target; see `Batching.lateness`."""

    SERVE = "Serve"
    REFUSE = "Refuse"


class Objective(StrEnum):
    """What counts when not everything can be in time; see `Batching.objective`."""

    WORK = "Work"
    ROWS = "Rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds that are a whole number of milliseconds, or of seconds; a rule."""

    whole: Whole
    """Of the number in this unit, as a manifest says it."""
    per_second: int = 1000

    def read(self, value: object) -> float:
        least, most = self.whole.minimum / self.per_second, self.whole.maximum / self.per_second
        seconds = Real(minimum=least, maximum=most).read(value)
        if round(seconds * self.per_second) / self.per_second != seconds:
            unit = "seconds" if self.per_second == 1 else "milliseconds"
            raise Broken(f"is not a whole number of {unit}")
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """What a policy may do. Sizes in rows, times in seconds."""

    policy: PolicyName = setting(Choice(of=PolicyName), default=PolicyName.DEADLINE)
    max_batch_size: int = setting(Whole(minimum=1, maximum=MAX_BATCH_SIZE), default=32)
    max_batch_tokens: int | None = setting(Whole(minimum=1, maximum=MAX_BATCH_SIZE * MAX_LENGTH))
    """Rows x longest when the device pads, the sum of lengths when it packs; None: no bound."""
    max_concurrent_batches: int = setting(Whole(minimum=1, maximum=64), default=1)
    """How many the server runs side by side, one on each of its workers."""
    max_wait_seconds: float = setting(Seconds(whole=WAIT_MILLISECONDS), default=0.005)
    target_seconds: float | None = setting(Seconds(whole=TARGET_MILLISECONDS))
    """From a request's arrival to its answer; None: only callers set deadlines."""
    lateness: Lateness = setting(Choice(of=Lateness), default=Lateness.SERVE)
    objective: Objective = setting(Choice(of=Objective), default=Objective.WORK)
    trust_priority: bool = setting(Truth(), default=False)
    max_queue_size: int = setting(Whole(minimum=1, maximum=1_000_000), default=SMALLEST_QUEUE)
    request_timeout_seconds: float = setting(
        Seconds(whole=TIMEOUT_SECONDS, per_second=1), default=30.0
    )
    length_buckets: tuple[int, ...] = setting(
        AscendingWholes(each=Whole(minimum=1, maximum=MAX_LENGTH), at_most=64), default=()
    )
    tenant_by: TenantsBy = setting(Choice(of=TenantsBy), default=TenantsBy.CALLER)
    tenant_header: str | None = setting(HEADER_NAME)
    """None: addresses are tenants."""
    tenant_weights: tuple[tuple[str, float], ...] = setting(WEIGHTS, default=())
    tenant_max_share: float = setting(Real(minimum=0.001, maximum=1.0), default=1.0)
    trusted_proxies: tuple[str, ...] = setting(NETWORKS, default=())
    max_concurrent_requests: int | None = setting(Whole(minimum=1, maximum=4096))
    """How many a language model's server has at the same time; None: learnt from it."""
    max_sequences: int | None = setting(Whole(minimum=1, maximum=4096))
    """Texts that our engine generates at the same time; None: as many as it says itself."""
    max_tokens_per_step: int | None = setting(Whole(minimum=1, maximum=1_000_000))
    """Of prompts and texts together, in our engine; None: as many as it says itself."""
    target_first_token_seconds: float | None = setting(Seconds(whole=TARGET_MILLISECONDS))
    """From a request's arrival to its first token; None: only callers set deadlines."""
    target_token_seconds: float | None = setting(Seconds(whole=TOKEN_MILLISECONDS))
    """From a token to the next one; None: no target."""
    adapters: str = setting(Text(at_least=0, at_most=64), default="")
    """Names what the file of adapters holds that lies beside this one: who has these settings has
    that file too. Empty: there is none."""
    tenants: TenantSettings = field(init=False, repr=False, compare=False)
    """The settings of tenants and of proxies in the form that requests need."""

    def __post_init__(self) -> None:
        if self.max_batch_size < 1 or self.max_queue_size < self.max_batch_size:
            raise InvalidInput("maxBatchSize", "must be 1 to maxQueueSize", self.max_batch_size)
        if not 0 <= self.max_wait_seconds < self.request_timeout_seconds:
            raise InvalidInput(
                "maxWait", "must be 0 to the request time-out", self.max_wait_seconds
            )
        for name, target in (
            ("targetLatency", self.target_seconds),
            ("targetFirstToken", self.target_first_token_seconds),
            ("targetToken", self.target_token_seconds),
        ):
            if target is not None and not 0 < target < self.request_timeout_seconds:
                raise InvalidInput(name, "must be 0 to the request time-out", target)
        sequences, tokens = self.max_sequences, self.max_tokens_per_step
        if sequences is not None and tokens is not None and tokens < sequences:
            raise InvalidInput("maxTokensPerStep", f"is below maxSequences ({sequences})", tokens)
        targets = (self.target_seconds, self.target_first_token_seconds)
        if self.lateness is Lateness.REFUSE and targets == (None, None):
            raise InvalidInput("lateness", "is Refuse, which needs a target latency")
        tenants = TenantSettings(
            by=self.tenant_by,
            header=self.tenant_header,
            weights=dict(self.tenant_weights),
            max_share=self.tenant_max_share,
            trusted_proxies=self.trusted_proxies,
        )
        object.__setattr__(self, "tenants", tenants)

    @property
    def spare_rows(self) -> int:
        """Rows of the queue that one tenant alone does not get, so that another finds room.

        An eighth, but every tenant may fill the batches that run and those that follow them.
        """
        needed = _BATCHES_AT_ONCE * self.max_concurrent_batches * self.max_batch_size
        return max(0, min(self.max_queue_size // _SPARE, self.max_queue_size - needed))

    def to_json(self) -> str:
        """The text of the settings file; equal settings give equal text."""
        # 30 and 30.0 are equal settings and must be equal texts.
        values = asdict(self) | {"tenant_weights": dict(self.tenant_weights)}
        del values["tenants"]
        seconds = {
            name: float(value)
            for name, value in values.items()
            if name.endswith("_seconds") and value is not None
        }
        for one in fields(self):
            if one.name in _ADDED_LATER and getattr(self, one.name) == one.default:
                del values[one.name]
        return json.dumps(values | seconds, sort_keys=True)

    def digest(self) -> str:
        """Short hash that names these settings."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


def settings_from_json(text: str | bytes) -> BatchSettings:
    """The settings in a file's text.

    Raises `InvalidInput` when it cannot be read or holds what no manifest may: each value obeys its
    rule.
    """
    with readable(FILE_NAME):
        mapping = json.loads(text)
    if not isinstance(mapping, dict):
        raise InvalidInput(FILE_NAME, "is not a JSON object", mapping)
    found: dict[str, Any] = {}
    for one, declared in declarations(BatchSettings):
        where = f"{FILE_NAME}: {one.name}"
        if one.name not in mapping:
            if one.name not in _ADDED_LATER:
                raise InvalidInput(where, "is required")
        elif mapping[one.name] is not None or one.default is not None:
            found[one.name] = ruled(declared.rule, mapping[one.name], where)
    return BatchSettings(**found)


_ADDED_LATER: Final = (
    *("max_concurrent_batches", "objective", "trusted_proxies", "adapters"),
    *("tenant_by", "tenant_header", "tenant_weights", "tenant_max_share"),
    *("max_concurrent_requests", "max_sequences", "max_tokens_per_step"),
    *("target_first_token_seconds", "target_token_seconds"),
)
"""Values that earlier sidecars do not know; each is left out where it has its default. An upgrade
restarts no pod, so a running sidecar must give the same settings the same hash as a new operator.
"""
