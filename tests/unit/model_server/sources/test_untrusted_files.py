"""Headers of safetensors that lie, and indexes that lead elsewhere, are refused with the reason."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.untrusted_files import (
    MOST_HEADER_BYTES,
    MOST_TENSORS,
    check_file,
    check_folder,
)


def tensor(*shape: object, begin: int = 0, end: int = 0) -> dict[str, Any]:
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}


def written(file: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return file


def refusal(file: Path) -> str:
    with pytest.raises(CannotLoad) as refused:
        check_file(file)
    message = str(refused.value)
    assert message.startswith(str(file))
    return message


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "x.safetensors"
    os.mkfifo(pipe)
    assert "it is no file" in refusal(pipe)


def test_right_file_is_taken(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "a": tensor(2, 2, end=16), "b": tensor(0, 3)}
    check_file(written(tmp_path / "x.safetensors", header, bytes(16)))


@pytest.mark.parametrize("length", [MOST_HEADER_BYTES + 1, 3 * 2**30, 2**63, 2**64 - 4])
def test_header_of_gigabytes_is_not_read(tmp_path: Path, length: int) -> None:
    file = written(tmp_path / "x.safetensors", b"{}", length=length)
    with file.open("r+b") as sparse:
        sparse.truncate(4 * 2**30)
    assert f"says to have {length} bytes; at most {MOST_HEADER_BYTES} are" in refusal(file)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "it ends before its header"),
        (b"1234567", "it ends before its header"),
        (struct.pack("<Q", 100) + b"{}", "it ends within its header"),
        (struct.pack("<Q", 2) + b"[]", "its header is not a JSON object"),
        (struct.pack("<Q", 2) + b"{x", "Expecting property name"),
        (struct.pack("<Q", 2) + b"\xff\xff", "decode"),
        (struct.pack("<Q", 9**5) + b"[" * 9**5, "recursion"),
    ],
)
def test_what_is_no_header_is_refused(tmp_path: Path, content: bytes, rule: str) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(content)
    message = refusal(file)
    assert "cannot be read as safetensors: " in message
    assert rule in message


@pytest.mark.parametrize(
    "shape",
    [
        [2**63],
        [0, 2**63],
        [2**40, 2**40],
        [0, 2**40, 2**40],
        [-1],
        [1.5],
        [True],
        [0] * 65,
        7,
        None,
    ],
)
def test_shape_that_no_tensor_has_is_refused(tmp_path: Path, shape: object) -> None:
    file = written(tmp_path / "x.safetensors", {"weight": {**tensor(), "shape": shape}})
    assert "the shape of weight is none that a tensor can have" in refusal(file)


@pytest.mark.slow
def test_too_many_tensors_are_refused(tmp_path: Path) -> None:
    header = {f"t{i}": tensor(0) for i in range(MOST_TENSORS + 1)}
    file = written(tmp_path / "x.safetensors", header)
    assert f"holds {MOST_TENSORS + 1} tensors; at most {MOST_TENSORS} are read" in refusal(file)


@pytest.mark.parametrize("name", ["../other/x.safetensors", "/etc/passwd", "a/../../x", 7, "a\0"])
def test_index_that_names_a_file_elsewhere_is_refused_by_name(tmp_path: Path, name: object) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": name}}))
    with pytest.raises(CannotLoad, match="leads out of the model's folder") as refused:
        check_folder(tmp_path)
    assert f"{index}: {json.dumps(name)}" in str(refused.value)


@pytest.mark.parametrize("document", [{}, {"weight_map": 7}, {"weight_map": ["a"]}])
def test_index_of_nothing_is_refused(tmp_path: Path, document: object) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(document))
    with pytest.raises(CannotLoad, match="weight_map is not a file for each tensor"):
        check_folder(tmp_path)


def test_index_whose_files_are_there_is_taken_and_one_that_lacks_some_is_not(
    tmp_path: Path,
) -> None:
    index = {"metadata": {}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    written(tmp_path / "1.safetensors", {"a": tensor(0)})
    with pytest.raises(CannotLoad, match=r"has no 2\.safetensors"):
        check_folder(tmp_path)
    written(tmp_path / "2.safetensors", {"b": tensor(0)})
    check_folder(tmp_path)
