"""The yardstick of the machine: what aiohttp does here when there is nothing to batch.

It parses the v2 JSON that `throughput` sends and answers v2 JSON of the shape that the simulated
model answers, at once. Started by `throughput` as a process of its own; says its port on a line.
"""

import asyncio
import gc

import orjson
import uvloop
from aiohttp import web


async def echo(request: web.BaseRequest) -> web.Response:
    """Answer `y` = `x`."""
    x = orjson.loads(await request.read())["inputs"][0]
    document = {"model_name": "m", "model_version": "1", "outputs": [x | {"name": "y"}]}
    return web.Response(body=orjson.dumps(document), content_type="application/json")


async def main() -> None:
    """Serve until the process is ended."""
    runner = web.ServerRunner(web.Server(echo, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print(f"listening: port {runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    uvloop.run(main())
