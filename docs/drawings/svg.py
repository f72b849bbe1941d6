"""What the drawings have in common: text, boxes and arrows as SVG, without a library."""

from collections.abc import Iterable
from html import escape
from typing import Final

INK: Final = "#1f2933"
FAINT: Final = "#7b8794"
BLUE: Final = "#2b6cb0"
PALE: Final = "#ebf4fb"

_HEAD: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
font-family="Helvetica, Arial, sans-serif" font-size="13">
<title>{title}</title>
<defs>
<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" \
orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{ink}"/></marker>
</defs>
<rect width="{width}" height="{height}" fill="#ffffff"/>
"""


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """A whole file, on white so that it can be read on any page."""
    head = _HEAD.format(width=width, height=height, title=escape(title), ink=INK)
    return head + "".join(f"{part}\n" for part in parts) + "</svg>\n"


def text(
    x: float, y: float, content: str, *, anchor: str = "start", fill: str = INK, bold: bool = False
) -> str:
    """One line; `y` is its base line."""
    weight = ' font-weight="bold"' if bold else ""
    where = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
    return f'<text {where} fill="{fill}"{weight}>{escape(content)}</text>'


def rectangle(
    x: float, y: float, width: float, height: float, *, fill: str = PALE, line: str = BLUE
) -> str:
    """With rounded corners."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
        f'fill="{fill}" stroke="{line}"/>'
    )


def box(x: float, y: float, width: float, height: float, title: str, *lines: str) -> list[str]:
    """A rectangle with a title and lines below it."""
    return [
        rectangle(x, y, width, height),
        text(x + 12, y + 22, title, bold=True),
        *(text(x + 12, y + 46 + 21 * number, line) for number, line in enumerate(lines)),
    ]


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, *, dashed: bool = False) -> str:
    """A straight one."""
    dashes = ' stroke-dasharray="4 4"' if dashed else ""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" '
        f'stroke-width="1.6"{dashes}/>'
    )


def dot(x: float, y: float, fill: str) -> str:
    """A point of a curve."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="4" fill="{fill}"/>'


def arrow(x1: float, y1: float, x2: float, y2: float, *, both: bool = False) -> str:
    """A line with a head at its end, or at both."""
    start = ' marker-start="url(#head)"' if both else ""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{INK}" '
        f'stroke-width="1.4" marker-end="url(#head)"{start}/>'
    )
