"""Writes the custom resources beside itself from the contract's declarations, for `make crds`."""

from pathlib import Path

import yaml

from custom_resource import class_resource, custom_resource

_HEAD = (
    "# The custom resource {}. Written by crds/generate.py from the declarations in\n"
    "# kube/ and contract/; change those, then run `make crds`.\n"
)


class _Dumper(yaml.SafeDumper):
    """Writes texts that hold quotes as blocks, so that none needs to be doubled."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = ">" if "'" in text or '"' in text or text.startswith("!") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def contents() -> dict[str, str]:
    """What the files should hold, by their names."""
    found = {}
    for definition in (custom_resource(), class_resource()):
        names = definition["spec"]["names"]
        text = yaml.dump(definition, Dumper=_Dumper, sort_keys=False, width=100)
        found[f"{names['plural']}.yaml"] = _HEAD.format(names["kind"]) + text
    return found


if __name__ == "__main__":
    for name, text in contents().items():
        Path(__file__).with_name(name).write_text(text, "utf-8")
