"""What a manifest says of a language model, which answers token by token: a limit and targets."""

from dataclasses import dataclass

from batchedmodel_contract.schema.reading import setting
from batchedmodel_contract.schema.rules import Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """How many texts are generated at once, and how soon their tokens should be there."""

    max_concurrent_requests: int | None = setting(
        Whole(minimum=1, maximum=4096),
        "Requests that the server has at the same time; others wait in the sidecar's queue. "
        "Absent: learnt from the server.",
    )
    target_first_token_milliseconds: int | None = setting(
        Whole(minimum=1, maximum=600_000),
        "Time from a request's arrival in which its first token should be there. Absent: only "
        "callers set deadlines.",
    )
    target_token_milliseconds: int | None = setting(
        Whole(minimum=1, maximum=60_000),
        "Time in which a token should follow the one before it. Absent: no such target.",
    )
