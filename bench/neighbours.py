"""What one caller or one neighbour does to the rest; the tables are in `neighbour_tables`.

    python bench/neighbours.py [--quick] [--json FILE] [--before CHECKOUT] [TABLE ...]

Without names a full run has all tables. A quick one has those that say something in a few seconds,
for as long as a minute lasts, and prints what it left out.
"""

import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Final

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "images")]

import neighbour_tables
from bench_report import Figure, new_parser, report, tell

TABLES: Final = sorted(module.name for module in iter_modules(neighbour_tables.__path__))
_TOO_LONG: Final = frozenset(
    {"busy_neighbour", "busy_neighbour_texts", "prompt_chunks", "single_stream"}
)
"""Not of a quick run: their servers take longer to start than it may last."""
_LAST_START_SECONDS: Final = 45.0
"""A quick run begins no table after this time; each takes a quarter of a minute at most."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    parser = new_parser(__doc__ or "")
    parser.add_argument("tables", metavar="TABLE", nargs="*", help=", ".join(TABLES))
    parser.add_argument(
        "--before", metavar="CHECKOUT", type=Path, help="another commit to compare with"
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.tables if name not in TABLES]
    if unknown:
        parser.error(f"there is no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    began, left_out = time.monotonic(), []
    figures: list[Figure] = []
    for name in options.tables or TABLES:
        is_late = time.monotonic() - began > _LAST_START_SECONDS
        if options.quick and not options.tables and (name in _TOO_LONG or is_late):
            left_out.append(name)
            continue
        tell(f"table {name}")
        table = import_module(f"neighbour_tables.{name}")
        figures += table.figures(quick=options.quick, before=options.before)
    exit_code = report(figures, options.json)
    if left_out:
        print(f"left out, as this was a quick run: {', '.join(left_out)}")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
