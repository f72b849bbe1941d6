"""The attackers' process: runs attacks for so many seconds with half a core at most.

    python -m support.attacks.attacker '{"port": 1, "kind": "V2", "attacks": ["..."], "seconds": 3}'

Prints what each was told, as JSON: visits, and answers by status.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from typing import Final

from batchedmodel_contract.processes.listening import raise_descriptors
from support.attacks.aim import Aim, Attack, Kind
from support.attacks.catalogue import ATTACKS

_SHARE: Final = 0.5
_TICK_SECONDS: Final = 0.02


async def _rest_between() -> None:
    """Keep the process below its share of a core."""
    began, spent = time.monotonic(), time.process_time()
    while True:
        await asyncio.sleep(_TICK_SECONDS)
        owed = (time.process_time() - spent) / _SHARE - (time.monotonic() - began)
        if owed > 0:
            time.sleep(owed)  # noqa: ASYNC251  # nothing else of the process may run either


async def _caller(attack: Attack, aim: Aim, until: float) -> None:
    while (left := until - time.monotonic()) > 0:
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(left):
                aim.visits += 1
                await attack.run(aim)
        await asyncio.sleep(attack.pause)


async def _attack(attacks: list[Attack], port: int, kind: Kind, seconds: float) -> dict[str, Aim]:
    aims = {attack.name: Aim(port, kind) for attack in attacks}
    until = time.monotonic() + seconds
    resting = asyncio.create_task(_rest_between())
    async with asyncio.TaskGroup() as group:
        for attack in attacks:
            for _ in range(attack.callers):
                group.create_task(_caller(attack, aims[attack.name], until))
    resting.cancel()
    return aims


def main(port: int, kind: str, attacks: list[str], seconds: float, niceness: int) -> None:
    """Attack, and print what came of it."""
    raise_descriptors()
    os.nice(niceness)
    named = [ATTACKS[name] for name in attacks]
    aims = asyncio.run(_attack(named, port, Kind(kind), seconds))
    found = {name: {"visits": aim.visits, "told": dict(aim.told)} for name, aim in aims.items()}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
