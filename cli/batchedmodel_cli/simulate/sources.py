"""Fetches profiles and traces from files and URLs, such as a sidecar's admin port.

Called by `inputs`. Everything is bounded in size and time. The contract checks what a profile
holds, and the simulator what a trace holds.
"""

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from typing import IO, Any, Final
from urllib.parse import urlsplit

from batchedmodel_contract.generation.description import (
    GenerationDescription,
    generation_from_mapping,
)
from batchedmodel_contract.inference.profile import Profile, profile_from_mapping
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.sidecar_api import ARRIVALS, generation_path, profile_path

_MEBIBYTE: Final = 1_048_576
_LARGEST_PROFILE: Final = 4 * _MEBIBYTE
_LARGEST_TRACE: Final = 256 * _MEBIBYTE
_SILENCE_SECONDS: Final = 10.0
_LONGEST_SECONDS: Final = 120.0
_SLOWEST_BATCH: Final = 3600.0
_CHUNK: Final = 65_536
_SCHEMES: Final = ("http://", "https://")


class Unusable(ValueError):
    """A source cannot be read, or its content is wrong; the message says why."""


def profile_from(place: str, model: str) -> Profile:
    """The profile in a file or at a URL; raises `Unusable`.

    A URL without a path is a sidecar's admin port, which is asked for the profile of `model`.
    """
    text = _text(place, profile_path(model))
    document = _mapping(text, "cost_rule, device and points")
    try:
        profile = profile_from_mapping(document)
    except InvalidInput as error:
        raise Unusable(str(error)) from error
    if not profile.points:
        raise Unusable("profile.points: must hold at least one measured batch")
    if not all(0 < point.seconds <= _SLOWEST_BATCH for point in profile.points):
        raise Unusable(
            f"profile.points: every batch must take more than 0 and at most {_SLOWEST_BATCH:g} s"
        )
    return profile


def engine_from(place: str, model: str) -> GenerationDescription:
    """What an engine of ours says of itself, in a file or at a URL; raises `Unusable`.

    A URL without a path is a sidecar's admin port.
    """
    document = _mapping(_text(place, generation_path(model)), "blocks, stepSeconds and others")
    try:
        return generation_from_mapping(document)
    except InvalidInput as error:
        raise Unusable(str(error)) from error


def trace_from_file(file: str) -> str:
    """The text of a trace; raises `Unusable`."""
    return _in_time(lambda: _file(file), _LARGEST_TRACE)


def trace_from_sidecar(url: str) -> str:
    """The text of the flight recorder behind an admin port; raises `Unusable`."""
    if not url.startswith(_SCHEMES):
        raise Unusable("is not a URL such as http://127.0.0.1:9090")
    return _in_time(lambda: _response(url, ARRIVALS), _LARGEST_TRACE)


def _text(place: str, path: str) -> str:
    """The text of a file, or what a server at a URL has at this path."""
    is_url = place.startswith(_SCHEMES)
    return _in_time(lambda: _response(place, path) if is_url else _file(place), _LARGEST_PROFILE)


def _mapping(text: str, holds: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise Unusable(f"is not a JSON object with {holds}")
    return document


def _in_time(opened: Callable[[], IO[bytes]], largest: int) -> str:
    """The whole text behind it; raises `Unusable`, as when it is too large or takes too long.

    Time-outs of sockets bound each read and not their sum, in heads of answers as in bodies.
    """
    outcome: Future[str] = Future()

    def work() -> None:
        try:
            with opened() as stream:
                outcome.set_result(_decoded(stream, largest))
        except BaseException as error:
            outcome.set_exception(error)

    # Nobody waits for one that is given up: it ends with the process.
    threading.Thread(target=work, daemon=True).start()
    try:
        return outcome.result(_LONGEST_SECONDS)
    except Unusable:
        raise
    except TimeoutError:
        raise Unusable(f"is not complete after {_LONGEST_SECONDS:g} s") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or repr(error)
        raise Unusable(f"cannot be read: {reason}") from error


def _file(name: str) -> IO[bytes]:
    return open(name, "rb")


def _response(url: str, path: str) -> IO[bytes]:
    """What a server answers; a URL without a path is asked for this one."""
    try:
        if urlsplit(url).path in ("", "/"):
            url = url.rstrip("/") + path
        response: IO[bytes] = urllib.request.urlopen(url, timeout=_SILENCE_SECONDS)
        return response
    except urllib.error.HTTPError as error:
        with error:
            raise Unusable(f"answers {error.code} {error.reason} ({url})") from error
    except urllib.error.URLError as error:
        raise Unusable(f"cannot be reached: {error.reason} ({url})") from error
    except ValueError as error:
        raise Unusable(f"is no URL: {error}") from error


def _decoded(stream: IO[bytes], largest: int) -> str:
    data = bytearray()
    # One read may be short; only an empty one is the end.
    while chunk := stream.read(_CHUNK):
        data += chunk
        if len(data) > largest:
            raise Unusable(f"is larger than {largest // _MEBIBYTE} MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unusable(f"is not UTF-8 text: {error.reason}") from error
