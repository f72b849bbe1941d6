"""Names and labels of the metrics that sidecars export; the autoscaler and the docs use the same.

Base units; labels are small enums only, but for the names of the ten largest tenants.
"""

from typing import Final

PREFIX: Final = "batchedmodel"

REQUESTS_OFFERED: Final = f"{PREFIX}_requests_offered_total"
REQUESTS_ACCEPTED: Final = f"{PREFIX}_requests_accepted_total"
REQUESTS_REJECTED: Final = f"{PREFIX}_requests_rejected_total"  # reason
REQUESTS_SETTLED: Final = f"{PREFIX}_requests_settled_total"  # outcome
REQUESTS_LATE: Final = f"{PREFIX}_requests_late_total"  # completed, but after the target
UNTRUSTED_PRIORITIES: Final = f"{PREFIX}_untrusted_priorities_total"
CANCELLED: Final = f"{PREFIX}_cancelled_total"  # stage: queued, inflight
QUEUE_REQUESTS: Final = f"{PREFIX}_queue_requests"
INFLIGHT_REQUESTS: Final = f"{PREFIX}_inflight_requests"
INFLIGHT_BATCHES: Final = f"{PREFIX}_inflight_batches"
QUEUE_LENGTH: Final = f"{PREFIX}_queue_length"  # rows waiting
OFFERED_ITEMS: Final = f"{PREFIX}_offered_items_total"
RETURNED_ITEMS: Final = f"{PREFIX}_returned_items_total"
TENANT_SERVED_ITEMS: Final = f"{PREFIX}_tenant_served_items_total"  # tenant: ten, and other
TENANT_REFUSED_ITEMS: Final = f"{PREFIX}_tenant_refused_items_total"  # tenant
TENANT_QUEUE_LENGTH: Final = f"{PREFIX}_tenant_queue_length"  # tenant
ADAPTER_SERVED_ITEMS: Final = f"{PREFIX}_adapter_served_items_total"  # adapter: ten, and other
ADAPTER_REFUSED_ITEMS: Final = f"{PREFIX}_adapter_refused_items_total"  # adapter
ADAPTERS: Final = f"{PREFIX}_adapters"  # phase
LORA_REQUESTS: Final = f"{PREFIX}_lora_requests_info"
"""By max_lora, running_lora_adapters and waiting_lora_adapters; its value is a time."""
QUEUE_OLDEST_AGE: Final = f"{PREFIX}_queue_oldest_age_seconds"
QUEUE_ITEM_SECONDS: Final = f"{PREFIX}_queue_item_seconds_total"  # integral of QUEUE_LENGTH
EXECUTING_ITEMS: Final = f"{PREFIX}_executing_items"
EXECUTING_ITEM_SECONDS: Final = f"{PREFIX}_executing_item_seconds_total"
TOKENS: Final = f"{PREFIX}_tokens_total"
PADDED_TOKENS: Final = f"{PREFIX}_padded_tokens_total"
LONG_ROWS: Final = f"{PREFIX}_long_rows_beside_texts_total"
CIRCUIT_OPEN: Final = f"{PREFIX}_circuit_open"  # 0 or 1
BATCHES: Final = f"{PREFIX}_batches_total"  # reason
BATCH_SIZE: Final = f"{PREFIX}_batch_size"  # rows, histogram
QUEUE_DURATION: Final = f"{PREFIX}_queue_duration_seconds"
MODEL_DURATION: Final = f"{PREFIX}_model_duration_seconds"
REQUEST_DURATION: Final = f"{PREFIX}_request_duration_seconds"
LOOP_LAG: Final = f"{PREFIX}_loop_lag_seconds"
EFFECTIVE_BATCH_SIZE: Final = f"{PREFIX}_effective_batch_size"  # rows
EFFECTIVE_WAIT: Final = f"{PREFIX}_effective_wait_seconds"
PREDICTED_LATENESS: Final = f"{PREFIX}_predicted_lateness_seconds"
TARGET_FEASIBLE: Final = f"{PREFIX}_target_feasible"  # 0 or 1
SUSTAINABLE_RATE: Final = f"{PREFIX}_sustainable_rows_per_second"
SMALLEST_FEASIBLE_TARGET: Final = f"{PREFIX}_smallest_feasible_target_seconds"
COMPILED: Final = f"{PREFIX}_compiled"
FIRST_TOKEN: Final = f"{PREFIX}_time_to_first_token_seconds"
OUTPUT_TOKEN: Final = f"{PREFIX}_time_per_output_token_seconds"
GENERATION_QUEUE: Final = f"{PREFIX}_generation_queue_seconds"
PROMPT_TOKENS: Final = f"{PREFIX}_prompt_tokens_total"
CACHED_TOKENS: Final = f"{PREFIX}_prompt_tokens_cached_total"
OUTPUT_TOKENS: Final = f"{PREFIX}_output_tokens_total"
GENERATION_RUNNING: Final = f"{PREFIX}_num_requests_running"
GENERATION_WAITING: Final = f"{PREFIX}_num_requests_waiting"
PREEMPTIONS: Final = f"{PREFIX}_num_preemptions_total"
GENERATION_LIMIT: Final = f"{PREFIX}_max_concurrent_requests"
CACHE_USAGE: Final = f"{PREFIX}_kv_cache_usage_perc"  # 0 to 1, as vLLM names and counts it
CACHE_INFO: Final = f"{PREFIX}_cache_config_info"
"""By block_size and num_gpu_blocks, as vLLM names them; 1."""
SETTINGS: Final = f"{PREFIX}_settings_info"  # hash
SETTINGS_ERRORS: Final = f"{PREFIX}_settings_errors_total"
MODEL_READY: Final = f"{PREFIX}_model_ready"
