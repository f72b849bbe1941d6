"""What a caller says of its own request: its time-out, its priority and its request group.

The data handler reads the headers, the v2 adapter its parameters. The batcher agrees to what the
settings allow and tells the policy. Pure.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from batchedmodel_contract.inference.params import PRIORITY, TIMEOUT
from batchedmodel_contract.invalid_input import InvalidInput, shown
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness
from batchedmodel_contract.schema.reading import ruled
from batchedmodel_contract.schema.rules import Whole
from batchedmodel_http.request_head import only
from batchedmodel_scheduling.queue.items import Priority, RequestGroup

TIMEOUT_HEADER: Final = "x-request-timeout-ms"
PRIORITY_HEADER: Final = "x-request-priority"
GROUP_HEADER: Final = "x-request-group"
TRACE_HEADER: Final = "traceparent"
REQUEST_ID_HEADER: Final = "x-request-id"
BATCH_HEADER: Final = "x-batch"
TIMING_HEADER: Final = "x-timing"
PARAMETERS: Final = frozenset({TIMEOUT, PRIORITY})
"""The v2 parameters that are understood here, in Triton's units."""

_CONTINUE: Final = "100-continue"
_MILLISECONDS: Final = re.compile(r"\d{1,12}(\.\d{1,9})?", re.ASCII)
_MICROSECONDS: Final = Whole(minimum=0, maximum=2**63 - 1)
_PRIORITIES: Final = Whole(minimum=0, maximum=max(Priority))
# A token of RFC 9110, as most identifiers are, and ":" and "/", which RFC 8941 adds.
_GROUP: Final = re.compile(r"([\w!#$%&'*+.^`|~:/-]{1,128}) *; *n=(\d{1,4})", re.ASCII)
_MOST_MEMBERS: Final = 4096
# W3C Trace Context, level 1: version, trace id, parent id, flags, and what later versions add.
_TRACE: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?", re.ASCII)
_LONGEST_ID: Final = 256
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What a caller says about its own request."""

    timeout: float | None = None
    """Seconds from its arrival."""
    priority: Priority | None = None
    request_group: RequestGroup | None = None
    trace: str | None = None
    """The trace id, or else the request id, by which the caller's logs name the request."""
    timing: bool = False
    """Whether the answer should say how it was served."""


NO_OPTIONS: Final = RequestOptions()


class AgreedTerms(NamedTuple):
    """What holds for a call; times in seconds from its arrival."""

    due: float
    """When its answer should be there."""
    limit: float
    """When its caller is told that there will be none."""
    priority: Priority
    request_group: RequestGroup | None
    trace: str | None = None


def in_force(settings: BatchSettings, *, one_by_one: bool, flushing: bool = False) -> BatchSettings:
    """The settings as they are followed here and now.

    `one_by_one`: our server runs one batch after the other, whatever the settings say: they may be
    meant for a server that replaces it, or is rolled back. `flushing`: no row waits for others.
    """
    return replace(
        settings,
        max_concurrent_batches=1 if one_by_one else settings.max_concurrent_batches,
        max_wait_seconds=0.0 if flushing else settings.max_wait_seconds,
    )


def agreed(options: RequestOptions, settings: BatchSettings) -> AgreedTerms:
    """The terms under these settings: without trust a caller can only ask for less."""
    limit = due = limit_of(options, settings)
    if settings.target_seconds is not None:
        due = min(limit, settings.target_seconds)
    priority = options.priority or Priority.NORMAL
    if priority is Priority.HIGH and not settings.trust_priority:
        priority = Priority.NORMAL
    return AgreedTerms(
        due=due,
        limit=limit,
        priority=priority,
        request_group=options.request_group,
        trace=options.trace,
    )


def limit_of(options: RequestOptions, settings: BatchSettings) -> float:
    """Seconds from its arrival after which a caller is told that there will be no answer."""
    limit = settings.request_timeout_seconds
    if settings.lateness is Lateness.REFUSE and settings.target_seconds is not None:
        limit = settings.target_seconds
    return limit if options.timeout is None else min(limit, options.timeout)


def combined(headers: RequestOptions, body: RequestOptions) -> RequestOptions:
    """Both together: the tighter time holds, and for the rest the body.

    A gateway may have added the headers for all of its callers. The body is the caller's own.
    """
    if headers is NO_OPTIONS:
        return body
    times = [options.timeout for options in (headers, body) if options.timeout is not None]
    return RequestOptions(
        timeout=min(times, default=None),
        priority=body.priority or headers.priority,
        request_group=body.request_group or headers.request_group,
        trace=headers.trace,
        timing=headers.timing,
    )


def options_of_headers(headers: Mapping[str, str], *, traced: bool = False) -> RequestOptions:
    """What the headers say, and who asks if that is to be `traced`; raises `InvalidInput`."""
    timeout, priority, group = (
        only(headers, name) for name in (TIMEOUT_HEADER, PRIORITY_HEADER, GROUP_HEADER)
    )
    timing = _switch(headers, TIMING_HEADER, default=False)
    if timeout is None and priority is None and group is None and not (traced or timing):
        return NO_OPTIONS
    return RequestOptions(
        timeout=None if timeout is None else _seconds(timeout),
        priority=None if priority is None else _header_priority(priority),
        request_group=None if group is None else _fan_out(group),
        trace=trace_of(headers) if traced else None,
        timing=timing,
    )


def options_of_parameters(parameters: Mapping[str, Any] | None) -> RequestOptions:
    """What the parameters of a v2 request say; raises `InvalidInput`."""
    if not parameters or PARAMETERS.isdisjoint(parameters):
        return NO_OPTIONS
    timeout, priority = parameters.get(TIMEOUT), parameters.get(PRIORITY)
    if timeout is not None:
        # 0 is the default, as it is to Triton's clients.
        timeout = ruled(_MICROSECONDS, timeout, f"parameters.{TIMEOUT}") / 1e6 or None
    if priority is not None:
        priority = _priority(ruled(_PRIORITIES, priority, f"parameters.{PRIORITY}"))
    return RequestOptions(timeout=timeout, priority=priority)


def declines_batching(headers: Mapping[str, str]) -> bool:
    """Whether the caller wants its request to go to the server as it is; raises `InvalidInput`."""
    return not _switch(headers, BATCH_HEADER, default=True)


def unmet_expectation(headers: Mapping[str, str]) -> str | None:
    """Why a request cannot be answered as it expects; None where it can."""
    if "Expect" in headers:
        for name, value in headers.items():
            if name.lower() == "expect" and value.lower() != _CONTINUE:
                return f"Expect: {shown(value)} is not understood; {_CONTINUE} is"
    return None


def _switch(headers: Mapping[str, str], name: str, *, default: bool) -> bool:
    given = only(headers, name)
    if given is None:
        return default
    if given not in ("on", "off"):
        raise InvalidInput(name, "is not on or off", given)
    return given == "on"


def request_id(headers: Mapping[str, str]) -> str | None:
    """The caller's own name of the request, if it may be written into a header and a log."""
    given = headers.get(REQUEST_ID_HEADER)
    if given and len(given) <= _LONGEST_ID and given.isascii() and given.isprintable():
        return given
    return None


def trace_of(headers: Mapping[str, str]) -> str | None:
    """The trace id, or else the request id; an invalid one is ignored, as the standard asks."""
    found = _TRACE.fullmatch(headers.get(TRACE_HEADER, ""))
    return found[1] if found else request_id(headers)


def _seconds(text: str) -> float:
    if not _MILLISECONDS.fullmatch(text) or float(text) == 0:
        raise InvalidInput(
            TIMEOUT_HEADER, "is not a number of milliseconds above 0 and below 1e12", text
        )
    return float(text) / 1000


def _header_priority(text: str) -> Priority | None:
    if len(text) != 1 or text not in "0123":
        rule = "is not 1 (high), 2 (normal), 3 (low) or 0 (the default)"
        raise InvalidInput(PRIORITY_HEADER, rule, text)
    return _priority(int(text))


def _priority(number: int) -> Priority | None:
    """0 is the default, as it is to Triton's clients."""
    return Priority(number) if number else None


def _fan_out(text: str) -> RequestGroup:
    found = _GROUP.fullmatch(text)
    size = int(found[2]) if found else 0
    if found is None or not 1 <= size <= _MOST_MEMBERS:
        rule = f"is not id;n=rows with an id of 1 to 128 characters and 1 to {_MOST_MEMBERS} rows"
        raise InvalidInput(GROUP_HEADER, rule, text)
    return RequestGroup(id=found[1], size=size)


def writable(value: str) -> str:
    """A header's value, or a reason, that aiohttp can write: UTF-8 without control characters.

    Other bytes are read as Latin-1. A control character becomes a space (RFC 9110, 5.5).
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        value = value.encode(errors="surrogateescape").decode("latin-1")
    return _CONTROL.sub(" ", value)
