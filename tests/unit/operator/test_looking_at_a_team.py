"""What the operator's tests make of an API server that does not answer them."""

from typing import NoReturn, cast

import pytest

from cluster import CommandFailed, ControlPlane
from support.operator_team import Team


class _Away:
    @property
    def probe(self) -> "_Away":
        return self

    def read(self, path: str) -> NoReturn:
        raise CommandFailed(f"{path}: connection refused")


@pytest.fixture
def team() -> Team:
    return Team(cast("ControlPlane", _Away()), "team")


def test_an_api_server_that_is_away_is_not_quiet(team: Team) -> None:
    with pytest.raises(CommandFailed):
        team.quiet()


def test_what_cannot_be_seen_is_neither_there_nor_gone(team: Team) -> None:
    assert not team.has_all()
    with pytest.raises(CommandFailed):
        team.has_none("hpa/minilm")
