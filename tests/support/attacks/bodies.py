"""Bodies that no caller means well with, though the protocol can carry them."""

import json
from typing import Any, Final

from support.attacks.aim import ANY, REFUSED, SERVED, Aim, Kind, Theme

THEME: Final = Theme(name="bodies", together=14)
_TENSORS: Final = frozenset({Kind.OURS, Kind.V2})
_MANY_KEYS: Final = "".join(f', "k{number}": 1' for number in range(50_000)).encode()
_HEAD: Final = "Inference-Header-Content-Length"


def _tensor(shape: Any, data: Any, datatype: Any = "INT64") -> bytes:
    entry = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
    return json.dumps({"inputs": [entry]}).encode()


@THEME.attack(told=REFUSED)
async def no_json(aim: Aim) -> None:
    """At all."""
    await aim.asks(b"<xml/>")


@THEME.attack(told=REFUSED)
async def deep_json(aim: Aim) -> None:
    """A hundred thousand brackets."""
    await aim.asks(b"[" * 100_000 + b"]" * 100_000)


@THEME.attack(told=REFUSED)
async def deep_objects(aim: Aim) -> None:
    """In a field that counts."""
    field = {Kind.V1: "instances", Kind.OPENAI: "input"}.get(aim.kind, "inputs").encode()
    await aim.asks(b'{"%b":' % field + b'{"a":' * 50_000 + b"1" + b"}" * 50_001)


@THEME.attack(told=ANY)
async def duplicate_keys(aim: Aim) -> None:
    """Of which one reader takes the first and another the last."""
    body = aim.body()
    await aim.asks(body[:-1] + b", " + aim.body()[1:])


@THEME.attack(told=ANY, pause=0.1)
async def many_keys(aim: Aim) -> None:
    """Fifty thousand that nobody knows."""
    await aim.asks(aim.body()[:-1] + _MANY_KEYS + b"}")


@THEME.attack(told=ANY, pause=0.1)
async def huge_id(aim: Aim) -> None:
    """That goes into logs and answers."""
    await aim.asks(aim.body(id="i" * 500_000), "X-Request-Id: " + "i" * 4000)


@THEME.attack(told=ANY)
async def id_of_control_characters(aim: Aim) -> None:
    """That would write lines of its own."""
    await aim.asks(aim.body(id="a\r\nX-Injected: 1\r\n\r\n\x1b[2J"))


@THEME.attack(told=REFUSED)
async def bad_utf_8(aim: Aim) -> None:
    """In a string."""
    await aim.asks(aim.body(id="a").replace(b'"a"', b'"\xff\xfe\xc0\x80"'))


@THEME.attack(told=ANY)
async def half_a_surrogate(aim: Aim) -> None:
    """Which UTF-8 has no bytes for."""
    await aim.asks(aim.body(id="@").replace(b'"@"', rb'"\ud800"'))


@THEME.attack(told=REFUSED)
async def utf_16(aim: Aim) -> None:
    """With its mark."""
    await aim.asks(aim.body().decode().encode("utf-16"))


@THEME.attack(told=REFUSED, others_may_serve=True)
async def not_a_number(aim: Aim) -> None:
    """Which is not JSON."""
    await aim.asks(aim.body().replace(b", 7", b", NaN"))


@THEME.attack(told=REFUSED | SERVED | {500, 502}, kinds=frozenset({Kind.V1}))
async def number_beyond_floats(aim: Aim) -> None:
    """1e999 in a row."""
    await aim.asks(b'{"instances": [1e999]}')


@THEME.attack(told=REFUSED, pause=0.1)
async def number_of_many_digits(aim: Aim) -> None:
    """A hundred thousand of them, which take a reader long."""
    await aim.asks(aim.body().replace(b", 7", b", " + b"7" * 100_000))


@THEME.attack(kinds=_TENSORS, told=REFUSED, others_may_serve=True)
async def shape_that_overflows(aim: Aim) -> None:
    """Whose product is 0 in 64 bits."""
    await aim.asks(_tensor([2**32, 2**32], []))


@THEME.attack(kinds=_TENSORS, told=REFUSED, others_may_serve=True)
async def negative_shape(aim: Aim) -> None:
    """Whose product fits."""
    await aim.asks(_tensor([-1, -2], [1, 2]))


@THEME.attack(kinds=_TENSORS, told=REFUSED, others_may_serve=True)
async def shape_that_is_no_number(aim: Aim) -> None:
    """Nor a list."""
    await aim.asks(_tensor([True, 2.0], [1, 2]))


@THEME.attack(kinds=_TENSORS, told=REFUSED, others_may_serve=True)
async def shape_of_many_dimensions(aim: Aim) -> None:
    """Ten thousand."""
    await aim.asks(_tensor([1] * 10_000, [1]))


@THEME.attack(kinds=_TENSORS, told=REFUSED, others_may_serve=True)
async def more_rows_than_data(aim: Aim) -> None:
    """A million of none."""
    await aim.asks(_tensor([2**20, 2], [1, 2]))


@THEME.attack(kinds=_TENSORS, told=ANY)
async def rows_of_nothing(aim: Aim) -> None:
    """A million rows without an element."""
    await aim.asks(_tensor([2**20, 0], []))


@THEME.attack(kinds=_TENSORS, told=REFUSED, others_may_serve=True)
async def unknown_datatype(aim: Aim) -> None:
    """A long one."""
    await aim.asks(_tensor([1, 1], [1], "INT" + "9" * 1000))


@THEME.attack(kinds=_TENSORS, told=REFUSED)
async def binary_size_that_lies(aim: Aim) -> None:
    """Of more than comes."""
    entry: dict[str, Any] = {"name": "x", "datatype": "INT64", "shape": [1, 2]}
    entry["parameters"] = {"binary_data_size": 2**62}
    head = json.dumps({"inputs": [entry]}).encode()
    await aim.asks(head + bytes(16), f"{_HEAD}: {len(head)}")


@THEME.attack(kinds=_TENSORS, told=REFUSED)
async def binary_head_beyond_the_body(aim: Aim) -> None:
    """Or below nothing."""
    await aim.asks(aim.body(), f"{_HEAD}: {2**40}")
    await aim.asks(aim.body(), f"{_HEAD}: -1")


@THEME.attack(kinds=_TENSORS, told=ANY)
async def output_named_twice(aim: Aim) -> None:
    """Which a server may answer with nonsense."""
    await aim.asks(aim.body(outputs=[{"name": "y"}, {"name": "y"}]))


@THEME.attack(kinds=_TENSORS, told=ANY)
async def many_outputs(aim: Aim) -> None:
    """Ten thousand that the model has not."""
    await aim.asks(aim.body(outputs=[{"name": f"z{number}"} for number in range(10_000)]))


@THEME.attack(kinds=_TENSORS, told=REFUSED, others_may_serve=True)
async def input_named_twice(aim: Aim) -> None:
    """With other data."""
    request = json.loads(aim.body())
    request["inputs"] *= 2
    await aim.asks(json.dumps(request).encode())


@THEME.attack(told=REFUSED, callers=2, pause=0.2)
async def body_too_large(aim: Aim) -> None:
    """Declared, and not sent."""
    await aim.says(aim.head(f"Content-Length: {2**40}"), b"{")


@THEME.attack(told=REFUSED, callers=1, pause=0.3)
async def endless_chunks(aim: Aim) -> None:
    """Sixteen megabytes of spaces."""
    piece = b"10000\r\n" + b" " * 2**16 + b"\r\n"
    await aim.says(aim.head("Transfer-Encoding: chunked"), *[piece] * 256)


@THEME.attack(told=REFUSED)
async def poisoned_row(aim: Aim) -> None:
    """One word among numbers."""
    await aim.asks(aim.body(3).replace(b"7", b'"poison"', 1))
