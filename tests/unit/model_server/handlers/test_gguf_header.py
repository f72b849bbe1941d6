"""GGUF files that lie are refused by field, at once and without the memory that they ask for."""

import contextlib
import os
import random
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from batchedmodel_model_server.errors import CannotLoad
from support.gguf_files import F32, LIST, TEXT, TOKENS, U32, U64, header, tensor, text, texts, value

gguf = pytest.importorskip("gguf")

from batchedmodel_model_server.handlers.gguf_models import (  # noqa: E402
    MOST_FIELDS,
    MOST_TEXT_BYTES,
    gguf_file,
    read_gguf_header,
)
from batchedmodel_model_server.sources.untrusted_files import MOST_TENSORS  # noqa: E402

NAMED: Mapping[str, bytes] = {"general.architecture": value(TEXT, "llama")}
HUGE = 2**60


def refusal(folder: Path, content: bytes, size: int | None = None) -> str:
    file = folder / "model.gguf"
    with file.open("wb") as made:
        made.write(content)
        made.truncate(max(len(content), size or 0))
    with pytest.raises(CannotLoad) as refused:
        read_gguf_header(file)
    message = str(refused.value)
    assert message.startswith(f"{file} cannot be read as GGUF: ")
    return message.partition("GGUF: ")[2]


def test_a_right_header_is_read(tmp_path: Path) -> None:
    fields = {**NAMED, "a": value(U32, 7), "b": value(F32, 0.5), TOKENS: texts("x", "y")}
    file = tmp_path / "model.gguf"
    head = header(fields, [tensor("w", 4, 2), tensor("v", 32, kind=8, offset=32)])
    file.write_bytes(head + bytes(32 + 34))
    read = read_gguf_header(file)
    assert read.values == {"general.architecture": "llama", "a": 7, "b": 0.5}
    assert read.lengths == {TOKENS: 2}
    assert [(name, one.shape, one.begin, one.size) for name, one in read.tensors.items()] == [
        ("w", (2, 4), len(head), 32),
        ("v", (32,), len(head) + 32, 34),
    ]


BEYOND = struct.pack("<IIQ", LIST, U32, HUGE)
LISTS = struct.pack("<IIQ", LIST, LIST, 1) * 9
NAME = text("x", HUGE)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "magic: 4 bytes at 0 are not within"),
        (b"GGU", "magic: 4 bytes at 0 are not within"),
        (header({}, magic=b"GGML"), "it does not begin with GGUF"),
        (header({}, magic=b"PK\3\4"), "it does not begin with GGUF"),
        (
            header({}, version=struct.pack(">I", 3)),
            "version: 50331648: its bytes are in big-endian",
        ),
        (header({}, version=struct.pack("<I", 1)), "version: 1: it is not 2 or 3"),
        (header({}, tensor_count=HUGE), f"tensor_count: {HUGE} is more than {MOST_TENSORS}"),
        (header({}, field_count=HUGE), f"metadata_kv_count: {HUGE} is more than {MOST_FIELDS}"),
        (header(NAMED, field_count=9), 'field 1: "" is no printable name'),
        (header({}, tensor_count=9), 'tensor 0: "" is no printable name'),
        (header([(b"x" * 999, b"")]), "field 0: a text of 999 bytes; at most 256"),  # type: ignore[list-item]
        (header({"a\nb": value(U32, 1)}), 'field 0: "a\\nb" is no printable name'),
        (header([*NAMED.items()] * 2), "general.architecture: is there twice"),
        (header({"a": struct.pack("<I", 99)}), "a: 99 is no type of a value"),
        (header({"a": struct.pack("<I", TEXT) + text("x", HUGE)}), f"a: a text of {HUGE} bytes"),
        (header({"a": struct.pack("<I", TEXT) + text("x", 9999)}), "a: 9999 bytes at "),
        (header({"a": struct.pack("<I", TEXT) + text(b"\xff")}), "'utf-8' codec"),
        (header({"a": BEYOND}), f"a: {4 * HUGE} bytes at "),
        (header({"a": texts(count=HUGE)}), "a: 8 bytes at "),
        (header({"a": struct.pack("<IIQ", LIST, TEXT, 2) + NAME}), f"a: a text of {HUGE} bytes"),
        (header({"a": LISTS}), "a: 9 is no type of a value, or not in a list"),
        (header({"general.alignment": value(U32, 0)}), "general.alignment: 0 is not a power"),
        (header({"general.alignment": value(U32, 48)}), "general.alignment: 48 is not a power"),
        (
            header({"general.alignment": value(U64, 2**63)}),
            "general.alignment: 9223372036854775808",
        ),
        (header({"general.alignment": value(TEXT, "8")}), 'general.alignment: "8" is not a power'),
        (header({}, [text("w") + struct.pack("<I", HUGE >> 32)]), "tensor w: 268435456 is more"),
        (header({}, [tensor("w")]), r"tensor w: shape []: a tensor without numbers"),
        (header({}, [tensor("w", 4, 0)]), "tensor w: shape [0, 4]: a tensor without numbers"),
        (header({}, [tensor("w", 4, kind=77)]), "tensor w: 77 is no type of a tensor"),
        (header({}, [tensor("w", 33, kind=8)]), "tensor w: rows of 33 are no whole blocks of 32"),
        (header({}, [tensor("w", 4, offset=3)]), "tensor w: offset 3: is no multiple of 32"),
        (
            header({}, [tensor("w", 4, offset=HUGE)]),
            f"tensor w: offset {HUGE}: with 16 bytes it is",
        ),
        (header({}, [tensor("w", 2**62, 2**62)]), f"tensor w: offset 0: with {2**126} bytes it is"),
        (header({}, [tensor("w", 4)]), "tensor w: offset 0: with 16 bytes it is not within"),
        (header({}, [tensor("w", 4), tensor("w", 4)]) + bytes(16), "tensor w: is there twice"),
        (header({}, [tensor("w", 9), tensor("v", 4, offset=32)]) + bytes(64), "tensor v: overlaps"),
        (header({}, [tensor("w", 9), tensor("v", 9)]) + bytes(64), "tensor v: overlaps tensor w"),
    ],
)
def test_a_header_that_lies_is_refused_by_field(tmp_path: Path, content: bytes, rule: str) -> None:
    message = refusal(tmp_path, content)
    assert message.startswith(rule)
    assert len(message) < 300


def test_a_text_of_gigabytes_within_a_large_file_is_not_read(tmp_path: Path) -> None:
    content = header({"a": struct.pack("<I", TEXT) + text("x", 2**31)})
    assert f"at most {MOST_TEXT_BYTES} are read" in refusal(tmp_path, content, 2**33)


def test_a_header_without_end_is_read_up_to_its_bound(tmp_path: Path) -> None:
    """A list whose count fits the file, which is a hole of gigabytes."""
    content = header({"a": struct.pack("<IIQ", LIST, 0, 2**32)})
    assert f"of which {32 * 2**20} bytes are read" in refusal(tmp_path, content, 2**33)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    with pytest.raises(CannotLoad, match="it is no file"):
        read_gguf_header(pipe)


def test_any_byte_may_be_wrong_and_any_part_missing(tmp_path: Path) -> None:
    """Read or refused: no other exception, and not more memory than a header may have."""
    fields = {**NAMED, TOKENS: texts("a", "bc"), "n": value(U32, 3), "f": value(F32, 1.5)}
    right = header(fields, [tensor("w", 8, 2), tensor("v", 32, kind=8, offset=64)]) + bytes(99)
    draw = random.Random(0)
    wrong = [right[:end] for end in range(0, len(right), 3)]
    for _ in range(400):
        spoilt = bytearray(right)
        for _ in range(draw.choice((1, 2, 8))):
            spoilt[draw.randrange(len(right))] = draw.choice((0, 1, 8, 9, 127, 128, 255))
        wrong.append(bytes(spoilt))
    file = tmp_path / "model.gguf"
    for content in wrong:
        file.write_bytes(content)
        with contextlib.suppress(CannotLoad):
            read_gguf_header(file)


LYING = (
    header({"a": struct.pack("<IIQ", LIST, TEXT, 2**60)}),
    header({"a": struct.pack("<IIQ", LIST, U64, 2**50)}),
    header({}, [tensor("w", 2**40, 2**20)]),
)


def test_lies_are_refused_within_little_memory(tmp_path: Path) -> None:
    """In a process that may take a quarter of a gigabyte more than its start."""
    names = []
    for at, content in enumerate(LYING):
        names.append(tmp_path / f"{at}.gguf")
        names[-1].write_bytes(content)
        os.truncate(names[-1], 2**36)
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from batchedmodel_model_server.errors import CannotLoad\n"
        "from batchedmodel_model_server.handlers.gguf_models import read_gguf_header\n"
        "held = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (held + 2**28,) * 2)\n"
        "for name in sys.argv[1:]:\n"
        "    try: read_gguf_header(Path(name))\n"
        "    except CannotLoad as refused: print(refused)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *map(str, names)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, len(ended.stdout.splitlines())) == (0, len(LYING)), ended.stderr


def test_the_model_of_a_folder_is_its_only_gguf_file_unless_it_has_a_config(tmp_path: Path) -> None:
    assert gguf_file(tmp_path) is None
    (tmp_path / "a.gguf").touch()
    assert gguf_file(tmp_path) == gguf_file(tmp_path / "a.gguf") == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(CannotLoad, match=r"2 GGUF files \(a.gguf, b.gguf\): name one"):
        gguf_file(tmp_path)
    (tmp_path / "config.json").touch()
    assert gguf_file(tmp_path) is None
