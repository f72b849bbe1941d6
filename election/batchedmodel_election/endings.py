"""What is raised to end a task or the process, and not because something failed.

Whoever answers somebody or goes on for ever catches `BaseException`, as the panics of libraries in
other languages are no `Exception`, and lets these pass.
"""

import asyncio
from typing import Final

ENDINGS: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
