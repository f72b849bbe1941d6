"""Logs of the containers of a pod, for people. Pure."""

import json


def as_text(log: str) -> str:
    """The end of a log in either form, for people: of JSON the messages and exceptions."""
    return "\n".join(_line_as_text(line) for line in log.strip().splitlines())


def _line_as_text(line: str) -> str:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        # The first line of an end is cut. What finds secrets in texts must know its words.
        cut = line.endswith('"}')
        return line.replace("\\n", "\n").replace('\\"', '"') if cut else line
    if not isinstance(fields, dict) or not isinstance(fields.get("message"), str):
        return line
    exception = fields.get("exception")
    return f"{fields['message']}\n{exception}" if exception else fields["message"]
