"""When an image is built again, and by whom: decided without building one."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from build_images import (
    MODEL_SERVER,
    RECIPES,
    ROOT,
    SIDECAR,
    BuildError,
    Engine,
    Recipe,
    arguments_of,
    chosen_engine,
    ensure,
    main,
)
from image_content import MissingFiles, read_content

_DOCKERFILE = """\
ARG BASE=debian:trixie-slim
FROM ${BASE} AS build
COPY settings.toml code ./
FROM ${BASE}
COPY --from=build /elsewhere /here
ADD --chown=1:1 \\
    more/*.py /more/
"""


@pytest.fixture
def context(tmp_path: Path) -> Path:
    for name in ("settings.toml", "code/a.py", "code/deep/b.py", "more/c.py", "more/d.txt", "x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "Dockerfile").write_text(_DOCKERFILE)
    return tmp_path


def _digest(context: Path, base: str = "sha256:of-the-base", **arguments: str) -> str:
    content = read_content(dockerfile=context / "Dockerfile", context=context, arguments=arguments)
    return content.digest(base)


def test_the_content_is_what_the_dockerfile_copies(context: Path, tmp_path: Path) -> None:
    content = read_content(dockerfile=context / "Dockerfile", context=context, arguments={})
    assert list(content.files) == ["code/a.py", "code/deep/b.py", "more/c.py", "settings.toml"]
    laid_out = tmp_path / "laid-out"
    laid_out.mkdir()
    content.lay_out(laid_out)
    found = sorted(str(p.relative_to(laid_out)) for p in laid_out.rglob("*") if p.is_file())
    assert found == list(content.files)


@pytest.mark.parametrize("changed", ["Dockerfile", "settings.toml", "code/deep/b.py"])
def test_a_changed_file_changes_the_digest(context: Path, changed: str) -> None:
    before = _digest(context)
    with (context / changed).open("a") as file:
        file.write("\n# more\n")
    assert _digest(context) != before


def test_a_new_name_or_mode_changes_the_digest(context: Path) -> None:
    digests = {_digest(context)}
    (context / "code" / "a.py").chmod(0o755)
    digests.add(_digest(context))
    (context / "code" / "a.py").rename(context / "code" / "e.py")
    digests.add(_digest(context))
    assert len(digests) == 3


def test_arguments_and_the_base_change_the_digest(context: Path) -> None:
    digests = {_digest(context), _digest(context, BASE="one"), _digest(context, BASE="two")}
    digests.add(_digest(context, base="sha256:of-a-newer-base"))
    assert len(digests) == 4


def test_what_is_not_copied_changes_nothing(context: Path) -> None:
    before = _digest(context)
    (context / "x").write_text("other")
    (context / "more" / "d.txt").write_text("other")
    (context / "code" / "__pycache__").mkdir()
    (context / "code" / "__pycache__" / "a.pyc").write_text("made by running it")
    os.utime(context / "code" / "a.py", (0, 0))
    assert _digest(context) == before


def test_a_dockerfile_that_copies_nothing_real_is_named(context: Path) -> None:
    (context / "settings.toml").unlink()
    with pytest.raises(MissingFiles, match=r"Dockerfile copies settings\.toml, which is not in"):
        _digest(context)


BUILD_TOOLS = {"images/compile_modules.py"}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_no_image_depends_on_tests_texts_or_other_processes(recipe: Recipe) -> None:
    content = read_content(dockerfile=recipe.dockerfile, context=ROOT, arguments={})
    # What a stage of a build runs is in no image that comes of it.
    folders = {Path(name).parts[0] for name in content.files if name not in BUILD_TOOLS}
    own = recipe.name.replace("-", "_")
    shared = {"contract", "scheduling", "http", "kube"}
    assert folders <= {"pyproject.toml", "constraints.txt", own, *shared}


def test_only_the_model_server_gets_a_model() -> None:
    assert arguments_of(SIDECAR, base="b", model_package="m") == {"BASE": "b"}
    assert arguments_of(MODEL_SERVER, base="b", model_package="") == {"BASE": "b"}
    assert arguments_of(MODEL_SERVER, base="b", model_package="m") == {
        "BASE": "b",
        "MODEL_PACKAGE": "m",
    }


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """A builder that keeps a file for each image, its id in it, and a list of what it was told."""
    program = tmp_path / "builder"
    program.write_text(f"""\
#!/bin/sh
cd {tmp_path}
echo "$@" >> calls
for last; do :; done
image="image-$(echo "$last" | tr / _)"
case $1 in
    inspect) cat "$image" ;;
    pull) test "$last" = base && echo id-1 > "$image" ;;
    build) while [ "$1" != --tag ]; do shift; done; echo new > "image-$(echo "$2" | tr / _)" ;;
    tag) cp "image-$(echo "$2" | tr / _)" "$image" ;;
    info) ;;
    *) exit 1 ;;
esac
""")
    program.chmod(0o755)
    return Engine(
        program=str(program), inspect=("inspect",), identity="ID", build=("build",), mounts=False
    )


def _calls(folder: Path) -> list[str]:
    """What the builder was told since this was last asked."""
    calls = folder / "calls"
    words = [line.split()[0] for line in calls.read_text().splitlines()]
    calls.unlink()
    return words


def test_an_image_is_built_once_and_tagged_by_content_and_for_development(
    engine: Engine, tmp_path: Path
) -> None:
    arguments = {"BASE": "base"}
    tag = ensure(engine, SIDECAR, arguments=arguments, prefix="here/bm")
    fetched = ["inspect", "pull", "inspect"]
    assert _calls(tmp_path) == [*fetched, "inspect", "build", "tag"]
    assert ensure(engine, SIDECAR, arguments=arguments, prefix="here/bm") == tag
    assert _calls(tmp_path) == ["inspect", "inspect", "inspect", "tag"]
    content = read_content(dockerfile=SIDECAR.dockerfile, context=ROOT, arguments=arguments)
    assert tag == f"here/bm-sidecar:{content.digest('id-1')}"
    assert (tmp_path / "image-here_bm-sidecar:dev").exists()


def test_a_base_that_changed_under_its_tag_is_built_upon_anew(
    engine: Engine, tmp_path: Path
) -> None:
    arguments = {"BASE": "base"}
    before = ensure(engine, SIDECAR, arguments=arguments, prefix="here/bm")
    (tmp_path / "image-base").write_text("id-2\n")
    assert ensure(engine, SIDECAR, arguments=arguments, prefix="here/bm") != before


def test_a_base_that_cannot_be_fetched_is_named(engine: Engine) -> None:
    with pytest.raises(BuildError, match="has no image nowhere and could not fetch it"):
        ensure(engine, SIDECAR, arguments={"BASE": "nowhere"}, prefix="here/bm")


def test_a_failed_build_is_an_error_that_names_the_image(engine: Engine) -> None:
    failing = replace(engine, build=("no-such-command",))
    with pytest.raises(BuildError, match="builder could not build here/bm-sidecar:"):
        ensure(failing, SIDECAR, arguments={"BASE": "base"}, prefix="here/bm")


def test_where_no_builder_answers_all_that_were_tried_are_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BuildError, match="tried: buildah, podman, docker"):
        chosen_engine(None)
    assert main(["--engine", "podman"]) == 1
    assert capfd.readouterr().err == "no builder of images answers; tried: podman\n"
