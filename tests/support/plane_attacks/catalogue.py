"""All attacks on the control plane, in the themes that run at the same time."""

from typing import Final

from support.plane_attacks import answers, crowds, objects, pods

THEMES: Final = (objects.THEME, pods.THEME, answers.THEME, crowds.STORM, crowds.HANDS)
ATTACKS: Final = {attack.name: attack for theme in THEMES for attack in theme.attacks}
assert len(ATTACKS) == sum(len(theme.attacks) for theme in THEMES), "two attacks share a name"
