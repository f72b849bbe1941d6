"""What every test run needs before its first test."""

import asyncio


def pytest_configure() -> None:
    """Leave no event loop to be made by accident.

    looptime asks for the current loop in synchronous tests too; one that is made by that question
    is closed by nobody and fails a later test with a ResourceWarning.
    """
    asyncio.set_event_loop(None)
