"""Writes `batchedmodels.yaml` beside itself from the contract's declarations, for `make crds`."""

from pathlib import Path

import yaml

from batchedmodel_contract.schema.custom_resource import custom_resource

_HEAD = (
    "# The custom resource BatchedModel. Written by crds/generate.py from the declarations in\n"
    "# contract/; change those, then run `make crds`.\n"
)


class _Dumper(yaml.SafeDumper):
    """Writes texts that hold quotes as blocks, so that none needs to be doubled."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = ">" if "'" in text or '"' in text or text.startswith("!") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def content() -> str:
    """What the file should hold."""
    definition = custom_resource()
    return _HEAD + yaml.dump(definition, Dumper=_Dumper, sort_keys=False, width=100)


if __name__ == "__main__":
    Path(__file__).with_name("batchedmodels.yaml").write_text(content(), "utf-8")
