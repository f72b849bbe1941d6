"""The batch settings as a running sidecar holds them: effective values in base units.

The operator and `batchedmodel run` derive them from the spec and write them as one JSON file into a
folder that the sidecar watches; policies take them as `configure`'s argument.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from batchedmodel_contract.invalid_input import InvalidInput, readable
from batchedmodel_contract.manifest.adapters import Adapters
from batchedmodel_contract.manifest.generation import Generation
from batchedmodel_contract.manifest.spec import (
    Batching,
    Lateness,
    Objective,
    PolicyName,
    Spec,
)
from batchedmodel_contract.manifest.tenants import Tenants, TenantsBy, TenantSettings
from batchedmodel_contract.schema.reading import Setting, declarations, ruled
from batchedmodel_contract.schema.rules import Real, Rule, Text, Whole

FILE_NAME: Final = "batching.json"
"""The file in the watched folder; in a pod, the key of the ConfigMap."""

_SMALLEST_QUEUE: Final = 2048  # the longest list that an OpenAI client may send in one request
_QUEUED_BATCHES: Final = 16
_BATCHES_AT_ONCE: Final = 2  # of each worker
_SPARE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """What a policy may do. Sizes in rows, times in seconds."""

    policy: PolicyName = PolicyName.DEADLINE
    max_batch_size: int = 32
    max_batch_tokens: int | None = None
    """Rows x longest when the device pads, the sum of lengths when it packs; None: no bound."""
    max_concurrent_batches: int = 1
    """How many the server runs side by side, one on each of its workers."""
    max_wait_seconds: float = 0.005
    target_seconds: float | None = None
    """From a request's arrival to its answer; None: only callers set deadlines."""
    lateness: Lateness = Lateness.SERVE
    objective: Objective = Objective.WORK
    trust_priority: bool = False
    max_queue_size: int = _SMALLEST_QUEUE
    request_timeout_seconds: float = 30.0
    length_buckets: tuple[int, ...] = ()
    tenant_by: TenantsBy = TenantsBy.CALLER
    tenant_header: str | None = None
    """None: addresses are tenants."""
    tenant_weights: tuple[tuple[str, float], ...] = ()
    tenant_max_share: float = 1.0
    trusted_proxies: tuple[str, ...] = ()
    max_concurrent_requests: int | None = None
    """How many a language model's server has at the same time; None: learnt from it."""
    max_sequences: int | None = None
    """Texts that our engine generates at the same time; None: as many as it says itself."""
    max_tokens_per_step: int | None = None
    """Of prompts and texts together, in our engine; None: as many as it says itself."""
    target_first_token_seconds: float | None = None
    """From a request's arrival to its first token; None: only callers set deadlines."""
    target_token_seconds: float | None = None
    """From a token to the next one; None: no target."""
    adapters: str = ""
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

    @classmethod
    def of(cls, spec: Spec) -> "BatchSettings":
        """The effective settings of a manifest: `spec.batching` and `spec.generation`."""
        batching, generation = spec.batching, spec.generation or Generation()
        queue = batching.max_queue_size
        if queue is None:
            queue = max(_SMALLEST_QUEUE, _QUEUED_BATCHES * batching.max_batch_size)
        tenants = batching.tenants or Tenants()
        given = {
            **_values(batching),
            **_values(tenants, "tenant_"),
            **_values(generation),
            "max_queue_size": queue,
            "adapters": _digest_of(spec.adapters),
        }
        for name, (setting, per_second) in _TIMES.items():
            given[name] = None if given[setting] is None else given[setting] / per_second
        return cls(**{name: given[name] for name in _DEFAULTS})

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
        left_out = {name for name in _ADDED_LATER if getattr(self, name) == _DEFAULTS[name]}
        told = {name: value for name, value in values.items() if name not in left_out}
        return json.dumps(told | seconds, sort_keys=True)

    def digest(self) -> str:
        """Short hash that names these settings."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


def _digest_of(adapters: Adapters | None) -> str:
    if adapters is None:
        return ""
    text = json.dumps(asdict(adapters), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def settings_from_json(text: str | bytes) -> BatchSettings:
    """The settings in a file's text.

    Raises `InvalidInput` when it cannot be read or holds what no manifest may: each value obeys the
    rule that the manifest declares, in the file's unit.
    """
    with readable(FILE_NAME):
        mapping = json.loads(text)
    if not isinstance(mapping, dict):
        raise InvalidInput(FILE_NAME, "is not a JSON object", mapping)
    given = {name: mapping[name] for name in _DEFAULTS if name in mapping}
    missing = next((name for name in _DEFAULTS if name not in {*given, *_ADDED_LATER}), None)
    if missing is not None:
        raise InvalidInput(f"{FILE_NAME}: {missing}", "is required")
    return BatchSettings(**{name: _read(name, value) for name, value in given.items()})


def _read(name: str, value: object) -> Any:
    if value is None and _DEFAULTS[name] is None:
        return None
    if name in _TIMES:
        return _seconds(*_TIMES[name], value, f"{FILE_NAME}: {name}")
    return ruled(_RULES[name], value, f"{FILE_NAME}: {name}")


def _seconds(setting: str, per_second: int, value: object, field: str) -> float:
    """A time, in seconds, that the manifest gives as a whole number of milliseconds or seconds."""
    of = _RULES[setting]
    assert isinstance(of, Whole), "the manifest counts times in whole units"
    bounds = Real(minimum=of.minimum / per_second, maximum=of.maximum / per_second)
    seconds: float = ruled(bounds, value, field)
    if round(seconds * per_second) / per_second != seconds:
        unit = "seconds" if per_second == 1 else "milliseconds"
        raise InvalidInput(field, f"is not a whole number of {unit}", value)
    return seconds


def _values(section: object, prefix: str = "") -> dict[str, Any]:
    """The values of a section, by the names that its settings have in the file."""
    return {f"{prefix}{name}": getattr(section, name) for name in _rules(type(section))}


def _rules(of: type[Any], prefix: str = "") -> dict[str, Rule]:
    """The rule of each value of a section, by its name in the file."""
    return {
        f"{prefix}{field.name}": declaration.rule
        for field, declaration in declarations(of)
        if isinstance(declaration, Setting)
    }


_RULES: Final[Mapping[str, Rule]] = {
    **_rules(Batching),
    **_rules(Tenants, "tenant_"),
    **_rules(Generation),
    "adapters": Text(at_least=0, at_most=64),
}
_TIMES: Final = {
    "max_wait_seconds": ("max_wait_milliseconds", 1000),
    "target_seconds": ("target_latency_milliseconds", 1000),
    "request_timeout_seconds": ("request_timeout_seconds", 1),
    "target_first_token_seconds": ("target_first_token_milliseconds", 1000),
    "target_token_seconds": ("target_token_milliseconds", 1000),
}
"""For each time in the file the manifest's setting, and how many of its units a second has."""
_DEFAULTS: Final = {field.name: field.default for field in fields(BatchSettings) if field.init}
"""Of each value in the file; one whose default is None may be null there."""
_ADDED_LATER: Final = (
    *("max_concurrent_batches", "objective", "trusted_proxies", "adapters"),
    *("tenant_by", "tenant_header", "tenant_weights", "tenant_max_share"),
    *("max_concurrent_requests", "max_sequences", "max_tokens_per_step"),
    *("target_first_token_seconds", "target_token_seconds"),
)
"""Values that earlier sidecars do not know; each is left out where it has its default. An upgrade
restarts no pod, so a running sidecar must give the same settings the same hash as a new operator.
"""
