"""What a manifest says of an upstream server: its protocol, its outputs and its paths."""

from enum import StrEnum
from typing import Final

from batchedmodel_contract.schema.rules import Text
from batchedmodel_contract.schema.shapes import Names

OUTPUT_NAMES: Final = Names()
_SEGMENT: Final = r"/[A-Za-z0-9._~@+=,:-]+"
PASS_PATHS: Final = Names(
    each=Text(
        pattern=rf"({_SEGMENT})+(/\*)?|/\*",
        form="a path such as /v2/logging or /v2/repository/*",
        at_most=253,
    ),
    called="path",
)


class ServerProtocol(StrEnum):
    """What a container of one's own speaks over HTTP; v1 is TensorFlow Serving's as well."""

    V2 = "V2"
    V1 = "V1"
    OPENAI = "OpenAI"
