"""Whether the library that reads tokenizers survives a model's own.

The library panics over files that lie, and some end its process, which would be the proxy's. So a
process of its own, bounded in memory and time, reads each file first, when the model is loaded. It
takes a tenth of a second.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
from typing import Final

from batchedmodel_model_server.errors import CannotLoad

_SECONDS: Final = 60
_MEMORY: Final = 2 * 1024**3
"""Bytes; the largest files in use take a quarter of it."""
_SAID_CHARACTERS: Final = 200
_TEXTS: Final = ("text", "A sentence, with 2 numbers: 10.", "Größe", "文 字", " ")
_UNUSABLE: Final = 1


def try_tokenizer(tokenizer: bytes, max_tokens: int) -> None:
    """Raise `CannotLoad` when callers could not be served with this tokenizer.json; blocks.

    `max_tokens`: to which the model's texts are cut.
    """
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
    try:
        ran = subprocess.run(
            [sys.executable, "-P", "-m", __name__, str(max_tokens)],
            input=tokenizer,
            capture_output=True,
            check=False,
            timeout=_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotLoad(f"tokenizer.json is not read within {_SECONDS} s") from error
    if not ran.returncode:
        return
    said = ran.stdout.decode("utf-8", "replace").strip()
    if ran.returncode < 0:
        said = f"it ended the process that read it by {signal.Signals(-ran.returncode).name}"
    raise CannotLoad(f"tokenizer.json cannot be used: {said or 'reading it failed'}")


def main() -> int:
    """Read the file on standard input and tokenise a little; 1, and the reason, if that fails.

    The argument is the most tokens of a text.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return 0  # the proxy has it; this image's handler does without
    try:
        made = Tokenizer.from_buffer(sys.stdin.buffer.read())
        made.enable_truncation(int(sys.argv[1]))
        for text in _TEXTS:
            # A text that it has no tokens for is an error of that text's caller.
            with contextlib.suppress(Exception):
                made.encode_batch_fast([text])
    except BaseException as error:
        sys.stdout.write(f"{type(error).__name__}: {error}"[:_SAID_CHARACTERS])
        return _UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
