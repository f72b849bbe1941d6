"""Adapters of a manifest: which they are, each with where its files come from."""

from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.schema.reading import RecordOf, Records, section, setting
from batchedmodel_contract.schema.rules import Text

MOST_ITEMS: Final = 256
MOST_SLOTS: Final = 256
LARGEST_RANK: Final = 512
ADAPTER_NAME: Final = Text(
    # A segment of a path as it is sent: nothing in it is ever written in escapes.
    pattern=r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?",
    form="a name of letters, digits, '.', '_' and '-' that begins and ends with a letter or digit",
    at_most=63,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterItem:
    """One adapter."""

    name: str = setting(ADAPTER_NAME, required=True)
    source: Source = section(Source, required=True)


ITEMS: Final = Records(each=RecordOf(AdapterItem), form="a list of adapters", at_most=MOST_ITEMS)
