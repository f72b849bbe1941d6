"""All attacks by name, and those that can be told apart when they are run together."""

from typing import Final

from support.attacks import bodies, connections, floods, framing, oddities, paths

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
