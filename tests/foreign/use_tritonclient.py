"""Run by the Python of the environment `tritonclient`: asks a server as a user's program would.

Its one argument is the server's address. It ends with an assertion if an answer is wrong.
"""

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

Array = np.ndarray[Any, Any]

DTYPES: list[Any] = [
    np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64,
    np.float16, ml_dtypes.bfloat16, np.float32, np.float64,
]  # fmt: skip
TEXTS = [b"", "Grüße".encode(), b"three words here"]


def columns() -> dict[str, Array]:
    """Three rows of two values of every datatype, the extremes among them."""
    found: dict[str, Array] = {}
    for dtype in DTYPES:
        if dtype is np.bool_:
            values = np.array([True, False, False, True, True, True])
        elif np.issubdtype(dtype, np.integer):
            info = np.iinfo(dtype)
            values = np.array([info.min, info.max, 0, 1, 2, 3], dtype=dtype)
        else:
            values = np.array([0, 1.5, -2.25, 1, 96, 0.125], dtype=dtype)
        found[np_to_triton_dtype(np.dtype(dtype)).lower()] = values.reshape(3, 2)
    found["bytes"] = np.array(TEXTS + TEXTS[::-1], dtype=np.object_).reshape(3, 2)
    return found


def inputs(arrays: dict[str, Array], binary: bool) -> list[triton.InferInput]:
    listed = []
    for name, values in arrays.items():
        one = triton.InferInput(name, list(values.shape), name.upper())
        # These two have no JSON form.
        one.set_data_from_numpy(values, binary_data=binary or name in ("fp16", "bf16"))
        listed.append(one)
    return listed


def same(left: Array, right: Array) -> bool:
    if left.dtype == np.object_:
        as_bytes = [v if isinstance(v, bytes) else v.encode() for v in left.flatten()]
        return left.shape == right.shape and as_bytes == list(right.flatten())
    alike = left.dtype == right.dtype and left.shape == right.shape
    return alike and bool((left == right).all())


def refused(call: Callable[[], object], words: str) -> None:
    try:
        call()
    except InferenceServerException as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


def main(address: str) -> None:
    client = triton.InferenceServerClient(address)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m")
    assert client.is_model_ready("m", "3")
    assert not client.is_model_ready("m", "4")
    assert not client.is_model_ready("other")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    metadata = client.get_model_metadata("m", "3")
    assert metadata["versions"] == ["3"]
    datatypes = [one["datatype"].lower() for one in metadata["inputs"]]
    assert [one["name"] for one in metadata["inputs"]] == datatypes
    refused(lambda: client.get_model_metadata("other"), "not served here")

    arrays = columns()
    for binary in (True, False):
        for version in ("", "3"):
            answer = client.infer("m", inputs(arrays, binary), version, request_id="7")
            assert answer.get_response()["id"] == "7"
            assert answer.get_response()["model_version"] == "3"
            for name, values in arrays.items():
                assert same(answer.as_numpy(f"echo_{name}"), values), (name, binary)
    selected = [
        triton.InferRequestedOutput("echo_int64", binary_data=False),
        triton.InferRequestedOutput("echo_bytes", binary_data=True),
        triton.InferRequestedOutput("echo_fp32", binary_data=True),
    ]
    answer = client.infer("m", inputs(arrays, True), outputs=selected)
    names = [one["name"] for one in answer.get_response()["outputs"]]
    assert sorted(names) == ["echo_bytes", "echo_fp32", "echo_int64"]
    for name in ("int64", "bytes", "fp32"):
        assert same(answer.as_numpy(f"echo_{name}"), arrays[name]), name
    for algorithm in ("gzip", "deflate"):
        answer = client.infer(
            "m",
            inputs(arrays, True),
            request_compression_algorithm=algorithm,
            response_compression_algorithm="gzip",
        )
        assert same(answer.as_numpy("echo_fp64"), arrays["fp64"])
    large = {name: np.tile(values, (400, 1)) for name, values in arrays.items()}
    answer = client.infer("m", inputs(large, True), response_compression_algorithm="gzip")
    assert same(answer.as_numpy("echo_int64"), large["int64"])
    answer = client.infer("m", inputs(arrays, True), priority=2, timeout=20_000_000)
    assert same(answer.as_numpy("echo_uint8"), arrays["uint8"])

    refused(lambda: client.infer("m", inputs(arrays, True), "4"), "3 is")
    refused(lambda: client.infer("m", inputs(arrays, True)[1:]), "lacks bool")
    refused(lambda: client.infer("m", inputs(arrays, True), sequence_id=7), "sequence_id")
    refused(lambda: client.infer("m", inputs(arrays, True), parameters={"k": 1}), '"k" is not')
    unknown = [triton.InferRequestedOutput("nothing")]
    refused(lambda: client.infer("m", inputs(arrays, True), outputs=unknown), "nothing")


main(sys.argv[1])
