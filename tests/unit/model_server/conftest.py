"""Keeps a loop that nobody would close from being made around tests without one."""

import asyncio

# looptime asks the policy for the loop around every test, and the policy makes one if it was never
# told that there is none.
asyncio.set_event_loop(None)
