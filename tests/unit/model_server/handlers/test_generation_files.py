"""What the files beside a generator's weights say, and how large its cache is; without torch."""

import json
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_model_server.api.generator import CacheSettings
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handlers.checkpoint import TaskName, task_of
from batchedmodel_model_server.handlers.generation_files import (
    check_layers,
    read_generation_files,
    switches_of,
)
from batchedmodel_model_server.handlers.hf_generation import blocks_for

GIB = 1 << 30


def written(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_a_head_that_predicts_tokens_generates(tmp_path: Path, architecture: str) -> None:
    written(tmp_path, config={"architectures": [architecture]})
    (tmp_path / "model.safetensors").touch()
    assert task_of(tmp_path) is TaskName.TEXT_GENERATION


@pytest.mark.parametrize(
    ("generation", "config", "stops"),
    [
        ({"eos_token_id": 3}, {"eos_token_id": 2}, (3,)),
        ({"eos_token_id": [3, 4, 3]}, {}, (3, 4)),
        ({}, {"eos_token_id": 2}, (2,)),
        ({}, {}, ()),
    ],
)
def test_the_generation_config_says_what_ends_a_text_before_the_config_does(
    tmp_path: Path, generation: Any, config: Any, stops: tuple[int, ...]
) -> None:
    written(tmp_path, generation_config=generation)
    assert read_generation_files(tmp_path, config).stop_ids == stops


@pytest.mark.parametrize("given", ["2", [2, "3"], [-1], 2.0, list(range(100)), True])
def test_what_is_no_token_id_ends_no_text(tmp_path: Path, given: Any) -> None:
    with pytest.raises(CannotLoad, match="eos_token_id"):
        read_generation_files(tmp_path, {"eos_token_id": given})


def test_a_template_in_a_file_of_its_own_goes_first(tmp_path: Path) -> None:
    written(tmp_path, tokenizer_config={"chat_template": "inner"})
    assert read_generation_files(tmp_path, {}).chat_template == "inner"
    (tmp_path / "chat_template.jinja").write_text("outer")
    assert read_generation_files(tmp_path, {}).chat_template == "outer"


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    odd, other = {"name": ["x"]}, {"name": "tool_use", "template": "a"}
    named = [odd, other, {"name": "default", "template": "b"}]
    written(tmp_path, tokenizer_config={"chat_template": named})
    assert read_generation_files(tmp_path, {}).chat_template == "b"


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    assert read_generation_files(tmp_path, {}).chat_template is None


@pytest.mark.parametrize("template", [5, {"a": 1}, "x" * (2 << 20)])
def test_a_template_that_is_no_bounded_text_is_refused(tmp_path: Path, template: Any) -> None:
    written(tmp_path, tokenizer_config={"chat_template": template})
    with pytest.raises(CannotLoad, match="chat_template"):
        read_generation_files(tmp_path, {})


def test_a_template_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("x" * (2 << 20))
    with pytest.raises(CannotLoad, match="longer than"):
        read_generation_files(tmp_path, {})


def test_special_tokens_are_texts_or_have_one(tmp_path: Path) -> None:
    tokens = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": False},
        "pad_token": None,
        "add_bos_token": True,
    }
    written(tmp_path, tokenizer_config=tokens)
    assert read_generation_files(tmp_path, {}).special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
    }


def test_older_checkpoints_name_special_tokens_in_a_file_of_their_own(tmp_path: Path) -> None:
    named = {"eos_token": {"content": "<old>"}, "bos_token": "<s>"}
    written(tmp_path, special_tokens_map=named, tokenizer_config={"eos_token": "</s>"})
    assert read_generation_files(tmp_path, {}).special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
    }


@pytest.mark.parametrize(
    ("generation", "defaults"),
    [
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0},
            {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0},
        ),
        (
            {"repetition_penalty": 1.05, "max_new_tokens": 512, "top_k": None},
            {"repetition_penalty": 1.05, "max_new_tokens": 512},
        ),
        # JSON has no integers: these were left out with a warning.
        ({"top_k": 50.0, "max_new_tokens": 9.0}, {"top_k": 50, "max_new_tokens": 9}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"do_sample": False, "top_p": 0.9}, {"temperature": 0.0, "top_p": 0.9}),
        ({"do_sample": None, "eos_token_id": 3}, {}),
    ],
)
def test_the_generation_config_says_how_tokens_are_chosen(
    tmp_path: Path, generation: Any, defaults: Any
) -> None:
    written(tmp_path, generation_config=generation)
    assert read_generation_files(tmp_path, {}).sampling_defaults == defaults
    assert read_generation_files(tmp_path, {}, sampling=False).sampling_defaults == {}


@pytest.mark.parametrize(
    ("generation", "reason"),
    [
        ({"temperature": -0.5}, "temperature -0.5 is not within 0 to 100"),
        ({"top_p": "0.9"}, 'top_p "0.9" is not a number'),
        ({"top_k": 20.5}, "top_k 20.5 is not an integer"),
        ({"min_p": 2}, "min_p 2 is not within 0 to 1"),
        ({"repetition_penalty": True}, "repetition_penalty true is not a number"),
        ({"max_new_tokens": 0}, "max_new_tokens 0 is below the minimum 1"),
    ],
)
def test_what_no_text_can_follow_in_a_generation_config_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, generation: Any, reason: str
) -> None:
    """A checkpoint that was served before would not load for a value that nothing asks for."""
    written(tmp_path, generation_config={"temperature": 0.5, **generation})
    defaults = read_generation_files(tmp_path, {}).sampling_defaults
    assert defaults == ({} if "temperature" in generation else {"temperature": 0.5})
    assert f"generation_config.json: {reason}: left out" in caplog.text


def test_layers_that_keep_a_state_are_refused_by_their_kind() -> None:
    check_layers({"layer_types": ["full_attention", "sliding_attention"]})
    with pytest.raises(CannotLoad, match="linear_attention are not served"):
        check_layers({"layer_types": ["full_attention", "linear_attention"]})


def test_positions_may_be_switched_where_rope_says_so() -> None:
    assert switches_of({"rope_parameters": {"rope_type": "default"}}) == set()
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 4096}
    assert switches_of({"rope_parameters": rope}) == {4096}
    dynamic = {"full_attention": {"rope_type": "dynamic"}}
    given = {"rope_parameters": dynamic, "max_position_embeddings": 2048}
    assert switches_of(given) == {2048}


def given(
    context: int, cache: CacheSettings, free: int = 8 * GIB, *, on_gpu: bool = False
) -> tuple[int, int]:
    """Blocks of 32 tokens and a MiB, and how long texts may be."""
    return blocks_for(context, cache, 32, 1 << 20, free, on_gpu=on_gpu)


def test_without_a_word_a_cpu_gives_a_quarter_of_what_is_free() -> None:
    assert given(2048, CacheSettings(), 8 * GIB) == (2048, 2048)


def test_without_a_word_a_cpu_gives_no_more_than_four_gib_nor_than_is_of_use() -> None:
    assert given(2048, CacheSettings(), 64 * GIB) == (4096, 2048)
    # 256 texts of two blocks each.
    assert given(64, CacheSettings(), 64 * GIB) == (512, 64)


def test_a_gpu_gives_nine_tenths() -> None:
    blocks, _ = given(2048, CacheSettings(), 10 * GIB, on_gpu=True)
    assert blocks == int(0.9 * 10 * GIB) >> 20


def test_memory_goes_before_a_fraction() -> None:
    asked = CacheSettings(memory_bytes=100 << 20, fraction=0.5)
    assert given(64, asked)[0] == 100
    assert given(64, CacheSettings(fraction=0.5))[0] == 4096


def test_a_cache_too_small_for_one_text_is_refused_with_the_figure_it_needs() -> None:
    with pytest.raises(CannotLoad, match=f"2048 tokens takes {64 << 20} bytes"):
        given(2048, CacheSettings(memory_bytes=63 << 20))
    with pytest.raises(CannotLoad, match="takes 67108864 bytes"):
        given(2048, CacheSettings(max_context_tokens=2048), 100 << 20)


def test_where_nothing_was_asked_for_texts_are_shorter_instead() -> None:
    assert given(4096, CacheSettings(), 200 << 20) == (50, 1600)
    with pytest.raises(CannotLoad):
        given(4096, CacheSettings(), 2 << 20)
