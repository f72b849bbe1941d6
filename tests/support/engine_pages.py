"""What the simulated engine's server says beside outputs: metrics, models, embeddings, refusals."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web

from support import engine_events, engine_script
from support.engine import Engine, tokens_of
from support.engine import Sequence as EngineSequence


def metrics(engine: Engine, model: str, adapters: Sequence[str]) -> str:
    """The page of vLLM's `/metrics`, as far as others read it."""
    numbers = {
        "vllm:num_requests_running": sum(not one.gone for one in engine.running),
        "vllm:num_requests_waiting": len(engine.waiting),
        "vllm:kv_cache_usage_perc": engine.cache_usage(),
        "vllm:prompt_tokens_total": engine.prompt_tokens,
        "vllm:generation_tokens_total": engine.generated_tokens,
        "simulated:requests_cancelled_total": engine.cancelled,
    }
    lines = []
    for name, value in numbers.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines.append(f"# TYPE {name.removesuffix('_total')} {kind}")
        lines.append(f'{name}{{engine="0",model_name="{model}"}} {float(value)}')
    labels = (
        f'max_lora="{len(adapters)}",running_lora_adapters="{_names(engine.running)}",'
        f'waiting_lora_adapters="{_names(engine.waiting)}"'
    )
    lines.append("# TYPE vllm:lora_requests_info gauge")
    lines.append(f"vllm:lora_requests_info{{{labels}}} {time.time()}")
    return "\n".join(lines) + "\n"


def _names(sequences: Iterable[EngineSequence]) -> str:
    return ",".join(sorted({one.adapter for one in sequences if one.adapter and not one.gone}))


def models(model: str, adapters: Sequence[str], max_model_len: int) -> dict[str, Any]:
    """The model, and each adapter as one whose parent it is."""
    shared = {"object": "model", "created": 0, "owned_by": "vllm"}
    own: dict[str, Any] = {
        "id": model,
        "root": model,
        "parent": None,
        "max_model_len": max_model_len,
    }
    cards = [own, *({"id": name, "root": name, "parent": model} for name in adapters)]
    return {"object": "list", "data": [shared | card for card in cards]}


def embeddings(document: Mapping[str, Any], model: str) -> dict[str, Any]:
    """A vector for each input, which begins with the number of its tokens."""
    given = document.get("input", "")
    inputs = [given] if isinstance(given, str) else given
    lengths = [tokens_of(engine_script.prompt_bytes({"input": one})) for one in inputs]
    data = [
        {"object": "embedding", "index": index, "embedding": [float(length), 1.0]}
        for index, length in enumerate(lengths)
    ]
    usage = {"prompt_tokens": sum(lengths), "total_tokens": sum(lengths)}
    return {
        "object": "list",
        "data": data,
        "model": document.get("model") or model,
        "usage": usage,
    }


def refusal(status: int, message: str, retry_after: str | None = None) -> web.Response:
    """An answer in the form that vLLM's errors have."""
    kinds = {
        400: "BadRequestError",
        404: "NotFoundError",
        429: "RateLimitError",
        503: "ServiceUnavailableError",
    }
    document = engine_events.error_document(
        status, kinds.get(status, "InternalServerError"), message
    )
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return web.json_response(document, status=status, headers=headers)
