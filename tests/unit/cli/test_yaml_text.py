"""YAML that becomes more than it looks: bounded by what it is with its aliases written out."""

import io
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_cli.__main__ import main
from batchedmodel_cli.yaml_text import (
    MOST_CHARACTERS,
    MOST_LEVELS,
    MOST_VALUES,
    NotOneDocument,
    read_document,
)

LAUGHS = "\n".join(
    [
        "a0: &a0 [x, x, x, x, x, x, x, x, x]",
        *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)),
    ]
)
MERGES = "\n".join(
    [
        "a0: &a0 {x: 1}",
        *(f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)),
    ]
)
LADDER = "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 200))])
"""Each is small; the last one is deep."""

TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=4)


def refusal(text: str) -> str:
    with pytest.raises(NotOneDocument) as refused:
        read_document(text)
    return str(refused.value)


@pytest.mark.parametrize("text", [LAUGHS, MERGES], ids=["aliases", "merges"])
def test_aliases_of_aliases_are_counted_as_what_they_stand_for(text: str) -> None:
    assert f"holds more than {MOST_VALUES} values, aliases written out" in refusal(text)


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: {c: *a}}", "&a [*a]"])
def test_alias_of_what_it_is_a_part_of_is_refused(text: str) -> None:
    assert "an alias stands for what it is a part of" in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10_000,
        "{a: " * 5000,
        "- " * 5000 + "x",
        "\n".join(" " * i + "a:" for i in range(MOST_LEVELS + 1)),
        LADDER,
    ],
    ids=["lists", "mappings", "dashes", "lines", "aliases"],
)
def test_what_is_nested_deeply_is_refused_by_its_place(text: str) -> None:
    message = refusal(text)
    assert message.startswith("line ")
    assert f"is nested more than {MOST_LEVELS} levels deep" in message


@pytest.mark.slow
def test_wide_text_is_refused_when_it_has_too_many_values() -> None:
    assert "holds more than" in refusal("[" + "1," * 2 * MOST_VALUES + "]")
    # All documents of a text count.
    assert "holds more than" in refusal("--- [1, 2, 3]\n" * MOST_VALUES)


def test_long_text_is_not_read() -> None:
    assert f"is longer than {MOST_CHARACTERS} characters" in refusal(" " * (MOST_CHARACTERS + 1))


@pytest.mark.parametrize("number", ["1" + ":1" * 1000, "0x" + "f" * 1000, "1" * 1000])
def test_number_of_many_digits_is_refused(number: str) -> None:
    assert f"line 1, column 4: a number has {len(number)} digits" in refusal(f"a: {number}")


@pytest.mark.parametrize(
    "text", ["!!timestamp x", "!!int x", "!!float x", "!!bool x", "!!binary é", "!!omap x", "? []"]
)
def test_value_that_its_tag_does_not_fit_is_no_yaml(text: str) -> None:
    assert refusal(text).startswith("is not YAML: ")


def test_honest_aliases_and_merges_are_read() -> None:
    text = "a: &a {x: 1}\nb: {<<: *a, y: [*a, *a]}\nc: *a"
    one = {"x": 1}
    assert read_document(text) == {"a": one, "b": {"x": 1, "y": [one, one]}, "c": one}


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner),
        max_leaves=20,
    ).filter(lambda document: document is not None)
)
def test_what_is_written_is_what_is_read(document: object) -> None:
    assert read_document(json.dumps(document)) == document
    assert read_document(yaml.safe_dump([document, document])) == [document, document]


@pytest.mark.parametrize("text", [LAUGHS, "a: &a [*a]", "[" * 500], ids=["laughs", "cycle", "deep"])
@pytest.mark.parametrize("command", ["run", "diff", "simulate --rate=9 --profile=none"])
def test_each_command_refuses_such_a_manifest_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, text: str
) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(text)
    name, *options = command.split()
    assert main([name, str(file), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{file}: line ")


@pytest.mark.parametrize(
    "text", [LAUGHS, " " * (MOST_CHARACTERS + 1) + "a"], ids=["laughs", "long"]
)
@pytest.mark.parametrize("way", ["file", "stream"])
def test_live_object_is_bounded_as_well(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    way: str,
) -> None:
    manifest = Path(__file__).parents[3] / "examples" / "simulated.yaml"
    live = tmp_path / "live.yaml"
    live.write_text(text)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["diff", str(manifest), "--live", str(live) if way == "file" else "-"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("the live object: ")


def test_file_without_end_is_read_to_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "/dev/zero"]) == 2
    assert f"/dev/zero: is longer than {MOST_CHARACTERS} characters" in capsys.readouterr().err


@pytest.mark.parametrize("text", ['!!int ""', '!!float ""', '!!timestamp ""'])
def test_a_tag_without_a_value_that_it_fits_is_no_yaml(text: str) -> None:
    assert refusal(text).startswith("is not YAML")


def test_what_is_quoted_of_a_text_is_short() -> None:
    assert len(refusal("!" * 100_000)) < 1_000
