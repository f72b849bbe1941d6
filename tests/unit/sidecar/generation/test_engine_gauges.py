"""Gauges of servers, as they name them."""

import pytest

from batchedmodel_scheduling.generation.admission import EngineView
from batchedmodel_sidecar.generation.engine_gauges import view_of

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b} c"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
"""


@pytest.mark.parametrize(
    ("page", "view"),
    [
        (VLLM, EngineView(running=7, waiting=2, cache_usage=0.5)),
        (
            b"sglang:num_running_reqs 5\nsglang:num_queue_reqs 1\nsglang:token_usage 0.1\n",
            EngineView(running=5, waiting=1, cache_usage=0.1),
        ),
        (
            b"tgi_batch_current_size 5\ntgi_queue_size 0 1720000000\n",
            EngineView(running=5, waiting=0, cache_usage=None),
        ),
        (
            b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 4\n",
            EngineView(running=1, waiting=4, cache_usage=None),
        ),
        (b"vllm:num_requests_running 3\n", EngineView(running=3, waiting=None, cache_usage=None)),
    ],
)
def test_the_gauges_of_known_servers_are_read(page: bytes, view: EngineView) -> None:
    assert view_of(page) == view


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"\xff\xfe{} 3",
        b"python_info 1\n",
        b"vllm:num_requests_running\n",
        b"vllm:num_requests_running NaN\n",
        b"vllm:num_requests_running -1\n",
        b"vllm:num_requests_running 1e300\n",
    ],
)
def test_a_page_without_them_tells_nothing(page: bytes) -> None:
    assert view_of(page) is None
