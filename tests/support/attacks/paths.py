"""Ways to what is not for callers."""

from typing import Final

from support.attacks.aim import ANY, REFUSED, Aim, Kind, Theme

THEME: Final = Theme(name="paths", together=12)
_TENSORS: Final = frozenset({Kind.OURS, Kind.V2})
_GONE: Final = REFUSED | {503}


@THEME.attack(told=REFUSED)
async def unload(aim: Aim) -> None:
    """The model, for everybody."""
    await aim.asks(b"{}", path="/v2/repository/models/m/unload")


@THEME.attack(told=REFUSED)
async def shared_memory(aim: Aim) -> None:
    """Of the server's machine."""
    named = b'{"key": "/x", "offset": 0, "byte_size": 64}'
    await aim.asks(named, path="/v2/systemsharedmemory/region/x/register")


@THEME.attack(told=REFUSED)
async def admin_paths(aim: Aim) -> None:
    """On the data port."""
    for path in ("/drain", "/metrics", "/settings", "/load", "/unload"):
        await aim.asks(b"", path=path)


@THEME.attack(told=REFUSED)
async def climbing_path(aim: Aim) -> None:
    """Out of the folder, in four spellings."""
    for up in ("..", "%2e%2e", "..%2f", "%252e%252e"):
        await aim.asks(b"{}", path=f"/v2/models/m/{up}/{up}/repository/index")


@THEME.attack(told=ANY, kinds=_TENSORS)
async def query(aim: Aim) -> None:
    """That changes what is asked."""
    await aim.asks(aim.body(), path=f"{aim.path}?rows={aim.number()}")


@THEME.attack(told=ANY)
async def url_in_the_query(aim: Aim) -> None:
    """Which is the request's own, and not where it goes."""
    await aim.asks(aim.body(), path=f"{aim.path}?next=http://{aim.number()}.example/v2?")


@THEME.attack(told=ANY, kinds=_TENSORS)
async def mark_in_the_version(aim: Aim) -> None:
    """Which a reader of the decoded path takes for its end."""
    for mark in ("%23", "%3F", "%2F", "%00", "%0d%0a"):
        await aim.asks(aim.body(), path=f"/v2/models/m/versions/1{mark}x/infer")


@THEME.attack(told=ANY)
async def head_on_infer(aim: Aim) -> None:
    """Without a body in the answer."""
    await aim.says(aim.head(method="HEAD"))


@THEME.attack(told=REFUSED)
async def other_methods(aim: Aim) -> None:
    """That inference has not."""
    for method in ("PUT", "DELETE", "TRACE", "PATCH", "XYZZY"):
        await aim.asks(aim.body(), method=method)


@THEME.attack(told=ANY)
async def whole_address(aim: Aim) -> None:
    """As proxies are asked."""
    await aim.asks(aim.body(), path="http://example.com/v2/models/m/infer")


@THEME.attack(told=_GONE)
async def path_that_is_no_text(aim: Aim) -> None:
    """Bytes beyond ASCII, and a broken escape."""
    for path in ("/v2/\xff\xfe", "/v2/%ff%fe", "/v2/%zz"):
        await aim.asks(b"{}", path=path)


@THEME.attack(told=_GONE)
async def many_models(aim: Aim) -> None:
    """None of which is here."""
    await aim.asks(aim.body(), path=f"/v2/models/m{aim.number()}/infer")


@THEME.attack(told=_GONE)
async def target_that_is_no_path(aim: Aim) -> None:
    """A star, and nothing at all."""
    await aim.asks(b"", path="*")
    await aim.says(b"POST  HTTP/1.1\r\nHost: x\r\n\r\n")
