"""What a manifest says of batches, and of those who share the model."""

from dataclasses import dataclass

from batchedmodel_contract.manifest.batching import (
    TARGET_MILLISECONDS,
    TIMEOUT_SECONDS,
    WAIT_MILLISECONDS,
    BatchSettings,
    Lateness,
    Objective,
    PolicyName,
)
from batchedmodel_contract.manifest.tenants import TenantsBy
from batchedmodel_contract.schema.reading import as_in, section, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenants:
    """Who shares the model, and how much of it."""

    by: TenantsBy = as_in(BatchSettings, "tenant_by")
    """What makes a tenant: `Caller`, the header or else the address; or `Adapter`, the adapter that
    a request names, or the model itself. Where adapters are tenants, bodies that are still to be
    read count for the address that they come from."""
    header: str | None = as_in(BatchSettings, "tenant_header")
    """Request header that names the tenant. It is believed on connections from `trustedProxies`,
    who must replace what callers write there. Absent: each caller's address is a tenant."""
    weights: tuple[tuple[str, float], ...] = as_in(BatchSettings, "tenant_weights")
    """The tenants, each with the weight of its share. Callers that are not listed share one of
    weight 1, as do requests without the header. Adapters that are not listed have weight 1 each."""
    max_share: float = as_in(BatchSettings, "tenant_max_share")
    """Share of the queue's room, of the places of large bodies and of the memory of bodies that one
    tenant may have at most. It bounds no device time that nobody else wants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How requests share a forward pass."""

    policy: PolicyName = as_in(BatchSettings, "policy")
    """`Deadline` serves in time as many as it can and waits for company only when that pays;
    `Greedy` takes whatever waits when the model is free; `Window` waits for a full batch or for
    `maxWaitMilliseconds`."""
    max_batch_size: int = as_in(BatchSettings, "max_batch_size", effective="what the class says")
    """Rows in one batch."""
    max_batch_tokens: int | None = as_in(BatchSettings, "max_batch_tokens")
    """Tokens in one batch: rows x longest row when the model pads, the sum of the rows' lengths
    when it packs. A row that is longer goes alone. Absent: no such bound. Without effect where all
    rows cost the same, whatever their length (the model's profile says so)."""
    max_concurrent_batches: int = as_in(BatchSettings, "max_concurrent_batches")
    """Batches that a container of one's own has at the same time: as many as its workers run side
    by side. A handler's server runs one after the other."""
    max_wait_milliseconds: int = setting(WAIT_MILLISECONDS, default=5)
    """Longest time that a row is held back for company, from its arrival on; `Greedy` holds none.
    """
    target_latency_milliseconds: int | None = setting(TARGET_MILLISECONDS)
    """Time from a request's arrival in which its answer should be there. `Deadline` orders and
    sizes batches by it; absent, by the time that a caller gives itself."""
    lateness: Lateness = as_in(BatchSettings, "lateness")
    """What will miss the target: `Serve` serves it with what capacity others leave, `Refuse`
    answers 429 or 503 at once."""
    objective: Objective = as_in(BatchSettings, "objective")
    """What `Deadline` has in time as much of as it can when not all can be: `Work`, by which long
    rows count for what they cost and fare about as well as short ones; or `Rows`, by which each
    counts for one, so that long ones are given up first."""
    trust_priority: bool = as_in(BatchSettings, "trust_priority")
    """Whether a caller may raise the priority of its own request; it may always lower it."""
    max_queue_size: int | None = as_in(
        BatchSettings,
        "max_queue_size",
        effective="the larger of 2048 and 16 x `maxBatchSize`",
        default=None,
    )
    """Rows that may wait; more are refused with 429. An eighth is kept for tenants of whom none
    wait yet."""
    request_timeout_seconds: int = setting(TIMEOUT_SECONDS, default=30)
    """A request that is not answered by then gets 504. Of a text that is streamed, this bounds the
    time to its first token and each silence between two tokens."""
    length_buckets: tuple[int, ...] = as_in(BatchSettings, "length_buckets")
    """Upper edges of length classes. `Greedy` and `Window` batch each class by itself, all rows as
    one class if there are none; `Deadline` merges neighbours where that is cheaper, and chooses
    classes itself if there are none."""
    tenants: Tenants | None = section(Tenants)
    """Who shares the model: service is fair between tenants, by the device time that their rows
    cost. Absent: each caller's address is one, and has an equal share."""
    trusted_proxies: tuple[str, ...] = as_in(BatchSettings, "trusted_proxies")
    """Networks of the gateways on whose connections the tenants' header is believed."""
