# SPDX-License-Identifier: Apache-2.0
"""Draw diagrams as SVG, without another program: states, participants, calls, dashboards.

Each function returns the text of one ``svg`` element. Its ``title`` and ``desc`` are what a screen
reader reads: ``desc`` says in sentences all that the picture shows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

#: Width of a character of the font, on average, and the distance of two lines, in pixels.
CHARACTER, LINE = 6.6, 18
#: Colours that people with colour blindness tell apart (Okabe and Ito), dark enough for lines.
COLOURS = ("#0072B2", "#B34E00", "#007A5A", "#A3437A", "#444444", "#8A6D00", "#3B6FB6")
_STYLE = "font-family: sans-serif; font-size: 12px"
_TRACK = 18


@dataclass(frozen=True)
class Arrow:
    """Something that leads from each of the sources to the target, for example an event."""

    label: str
    sources: tuple[str, ...]
    target: str


@dataclass
class Canvas:
    """The elements of a picture, and how large it is."""

    name: str
    title: str
    sentences: Sequence[str]
    width: float = 0
    height: float = 0
    parts: list[str] = field(default_factory=list)

    def reach(self, x: float, y: float) -> None:
        """Make the picture large enough for a point."""
        self.width, self.height = max(self.width, x + 8), max(self.height, y + 8)

    def text(self, x: float, y: float, text: str, **attributes: str) -> None:
        """Write text whose base line begins at the point."""
        more = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{more}>{escape(text)}</text>')
        anchored = attributes.get("text_anchor") == "middle"
        self.reach(x + len(text) * CHARACTER / (2 if anchored else 1), y)

    def box(self, place: tuple[float, float], size: tuple[float, float], fill: str) -> None:
        """Draw a box with rounded corners."""
        (x, y), (width, height) = place, size
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
            f'fill="{fill}" stroke="#444"/>'
        )
        self.reach(x + width, y + height)

    def path(self, points: Iterable[tuple[float, float]], colour: str, **attributes: str) -> None:
        """Draw a line through the points."""
        listed = list(points)
        text = " ".join(f"{x:g},{y:g}" for x, y in listed)
        more = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
        self.parts.append(
            f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="1.5"{more}/>'
        )
        for x, y in listed:
            self.reach(x, y)

    def dot(self, x: float, y: float, colour: str) -> None:
        """Draw a small dot."""
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="3" fill="{colour}"/>')

    def head(self, x: float, y: float, step: float, colour: str) -> None:
        """Draw the head of a horizontal arrow; its point is here, and it comes from ``step``."""
        self.parts.append(
            f'<polygon points="{x:g},{y:g} {x + step:g},{y - 4:g} {x + step:g},{y + 4:g}" '
            f'fill="{colour}"/>'
        )

    def finish(self) -> str:
        """Return the picture."""
        names = f"{self.name}-title", f"{self.name}-desc"
        return "\n".join(
            (
                '<svg xmlns="http://www.w3.org/2000/svg" role="img" class="picture"',
                f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}"',
                f'aria-labelledby="{names[0]} {names[1]}" style="{_STYLE}">',
                f'<title id="{names[0]}">{escape(self.title)}</title>',
                f'<desc id="{names[1]}">{escape(" ".join(self.sentences))}</desc>',
                '<rect width="100%" height="100%" fill="#fff"/>',
                *self.parts,
                "</svg>",
            )
        )


def tracks(
    canvas: Canvas,
    boxes: Mapping[str, Sequence[str]],
    arrows: Sequence[Arrow],
    fills: Mapping[str, str],
) -> str:
    """Draw a column of boxes, and right of it a vertical track for each arrow.

    ``boxes`` maps names to lines of further text. A line leaves each source at a dot, joins the
    others in the track, and enters the target below the label of the arrow. So no new box and no
    new arrow can hide another one.
    """
    wide = max(max(len(name) * 1.15, *map(len, ("", *notes))) for name, notes in boxes.items())
    right = 8 + wide * CHARACTER + 16
    first = right + max(len(arrow.label) for arrow in arrows) * CHARACTER + 26
    ports: dict[str, list[tuple[int, bool]]] = {name: [] for name in boxes}
    for number, arrow in enumerate(arrows):
        for source in arrow.sources:
            if source != arrow.target:
                ports[source].append((number, False))
        ports[arrow.target].append((number, True))
    rows: dict[tuple[str, int, bool], float] = {}
    top = 8.0
    for name, notes in boxes.items():
        height = max(len(ports[name]) * LINE + 8, (len(notes) + 1) * 15 + 14)
        canvas.box((8, top), (right - 8, height), fills.get(name, "#eef3f8"))
        canvas.text(16, top + 19, name, font_weight="bold")
        for place, note in enumerate(notes, 1):
            canvas.text(16, top + 19 + 15 * place, note, font_size="11")
        for place, (number, enters) in enumerate(ports[name]):
            rows[name, number, enters] = top + 16 + place * LINE
        top += height + 14
    for number, arrow in enumerate(arrows):
        colour, track = COLOURS[number % len(COLOURS)], first + number * _TRACK
        target = rows[arrow.target, number, True]
        sources = [rows[key] for key in rows if key[1] == number and not key[2]]
        for row in sources:
            canvas.path(((right, row), (track, row)), colour)
            canvas.dot(right, row, colour)
            canvas.dot(track, row, colour)
        canvas.path(((track, min([*sources, target])), (track, max([*sources, target]))), colour)
        canvas.path(((track, target), (right + 8, target)), colour)
        canvas.head(right, target, 9, colour)
        canvas.text(right + 14, target - 3, arrow.label, fill=colour, font_size="11")
    return canvas.finish()


@dataclass(frozen=True)
class Node:
    """A participant in a grid of columns and rows."""

    name: str
    column: float
    row: float
    note: str = ""
    fill: str = "#eef3f8"


@dataclass(frozen=True)
class Link:
    """A participant calls another one; ``place`` moves the label along the line (0 to 1)."""

    source: str
    target: str
    label: str
    place: float = 0.5


def grid(canvas: Canvas, nodes: Sequence[Node], links: Sequence[Link]) -> str:
    """Draw participants in a grid, and a labelled arrow for each link."""
    width, height, across, down = 160.0, 46.0, 300.0, 110.0
    at = {node.name: (8 + node.column * across, 8 + node.row * down) for node in nodes}
    for number, link in enumerate(links):
        colour = COLOURS[number % len(COLOURS)]
        (x1, y1), (x2, y2) = at[link.source], at[link.target]
        begin, end = (x1 + width / 2, y1 + height / 2), (x2 + width / 2, y2 + height / 2)
        dx, dy = end[0] - begin[0], end[1] - begin[1]
        length = (dx * dx + dy * dy) ** 0.5
        ux, uy = dx / length, dy / length
        if any((link.target, link.source) == (other.source, other.target) for other in links):
            # Side by side with the line of the other direction.
            begin, end = ((x - 50 * uy, y + 12 * ux) for x, y in (begin, end))
        # From border to border of the boxes.
        cut = min(
            (width / 2 + 3) / abs(dx) if dx else 9.0, (height / 2 + 3) / abs(dy) if dy else 9.0
        )
        start = begin[0] + dx * cut, begin[1] + dy * cut
        stop = end[0] - dx * cut, end[1] - dy * cut
        canvas.path((start, stop), colour)
        canvas.parts.append(
            f'<polygon points="{stop[0]:g},{stop[1]:g} '
            f"{stop[0] - 9 * ux - 4 * uy:g},{stop[1] - 9 * uy + 4 * ux:g} "
            f'{stop[0] - 9 * ux + 4 * uy:g},{stop[1] - 9 * uy - 4 * ux:g}" fill="{colour}"/>'
        )
        middle = (
            start[0] + (stop[0] - start[0]) * link.place,
            start[1] + (stop[1] - start[1]) * link.place,
        )
        lines = link.label.split("\n")
        for place, line in enumerate(lines):
            canvas.text(
                middle[0],
                middle[1] - 5 + (place - len(lines) + 1) * 13,
                line,
                fill=colour,
                font_size="11",
                text_anchor="middle",
                paint_order="stroke",
                stroke="#fff",
                stroke_width="4",
            )
    for node in nodes:
        x, y = at[node.name]
        canvas.box((x, y), (width, height), node.fill)
        shift = 19 if node.note else 27
        canvas.text(x + width / 2, y + shift, node.name, font_weight="bold", text_anchor="middle")
        if node.note:
            canvas.text(x + width / 2, y + 35, node.note, font_size="10", text_anchor="middle")
    return canvas.finish()


@dataclass(frozen=True)
class Call:
    """A message between two participants, by their numbers; ``answer`` if it answers one."""

    source: int
    target: int
    text: str
    answer: bool = False


def sequence(canvas: Canvas, participants: Sequence[str], calls: Sequence[Call]) -> str:
    """Draw messages from top to bottom between the life lines of participants."""
    step = max(len(name) for name in participants) * CHARACTER * 1.15 + 20
    places = [8 + step / 2 + number * step for number in range(len(participants))]
    lines = [call.text.split("\n") for call in calls]
    bottom = 44 + sum(8 + 13 * len(one) for one in lines)
    for place, name in zip(places, participants, strict=True):
        canvas.path(((place, 30), (place, bottom)), "#999", stroke_dasharray="2 3")
        canvas.box((place - step / 2 + 3, 6), (step - 6, 24), "#eef3f8")
        canvas.text(place, 22, name, text_anchor="middle", font_weight="bold")
    row = 52.0
    for call, texts in zip(calls, lines, strict=True):
        colour = "#777" if call.answer else COLOURS[0]
        begin, end = places[call.source], places[call.target]
        dashes = {"stroke_dasharray": "5 3"} if call.answer else {}
        canvas.path(((begin, row), (end, row)), colour, **dashes)
        canvas.head(end, row, 9 if end < begin else -9, colour)
        for number, text in enumerate(texts):
            canvas.text(places[-1] + step / 2 + 6, row + 4 + 13 * number, text, font_size="11")
        row += 8 + 13 * len(texts)
    return canvas.finish()
