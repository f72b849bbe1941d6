"""All attacks by name, and those that can be told apart when they are run together."""

from typing import Final

from support.attacks import bodies, connections, floods, framing, oddities, paths
from support.attacks.aim import Attack, Kind

THEMES: Final = (
    framing.THEME,
    connections.THEME,
    bodies.THEME,
    floods.THEME,
    paths.THEME,
    oddities.THEME,
)
ATTACKS: Final = {attack.name: attack for theme in THEMES for attack in theme.attacks}
assert len(ATTACKS) == sum(len(theme.attacks) for theme in THEMES), "two attacks share a name"


def bouts(kind: Kind) -> list[list[Attack]]:
    """All that can be done to this kind, as attacks of a theme that run together."""
    found: list[list[Attack]] = []
    for theme in THEMES:
        attacks = [one for one in theme.attacks if kind in one.kinds]
        found += (
            attacks[at : at + theme.together] for at in range(0, len(attacks), theme.together)
        )
    return found
