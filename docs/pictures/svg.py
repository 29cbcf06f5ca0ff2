"""What the pictures share: a drawing of boxes, lines and texts, written as SVG that suits light and dark.

Ink is currentColor, which a media query sets; fills are see-through colours that suit both. `python3
docs/pictures/NAME.py` writes NAME.svg next to the script, and `python3 docs/pictures/svg.py` all of them; a test
compares."""

import importlib
import sys
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parent
COLOURS = {"blue": "#3b82f6", "orange": "#ee8a1d", "green": "#1f9d61", "red": "#e5484d", "violet": "#8e5cf0", "grey": "#8b949e"}
# No colour is readable as text on white and on black alike, so letters have one for each.
LETTERS = {"blue": ("#1f5fd0", "#7fb2ff"), "orange": ("#a04a06", "#f3a44d"), "green": ("#14713f", "#4fce8d"),
           "red": ("#b3261e", "#ff938b"), "violet": ("#6d3bd1", "#b79bff"), "grey": ("#57606a", "#9aa4af")}


def number(value):
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Picture:
    """Shapes in the order in which they are drawn. A `kind` is one of COLOURS, and may be followed by further classes
    of `style`, the picture's own CSS; `{id}` stands for the picture in it."""

    def __init__(self, name, width, height, title, description, style=""):
        self.name, self.width, self.height = name, width, height
        self.title, self.description, self.style = title, description, style
        self.shapes, self.letters = [], set()

    def add(self, shape):
        self.shapes.append(shape)

    def box(self, x, y, width, height, kind="grey", text="", fill=0.2, round=4, size=14, weight=""):
        colour, _, classes = kind.partition(" ")
        self.add(f'<rect{named(classes)} x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
                 f'rx="{round}" fill="{COLOURS[colour]}" fill-opacity="{number(fill)}" stroke="{COLOURS[colour]}"/>')
        if text:
            self.text(x + width / 2, y + height / 2 + size * 0.36, text, size=size, weight=weight, kind=classes)

    def text(self, x, y, text, size=14, anchor="middle", kind="", weight="", mono=False, colour="", turn=None):
        if not text:
            return
        details = [f'text-anchor="{anchor}"' if anchor != "start" else "", f'font-size="{size}"' if size != 14 else "",
                   f'font-weight="{weight}"' if weight else "", 'font-family="ui-monospace, monospace"' if mono else "",
                   f'transform="rotate({turn} {number(x)} {number(y)})"' if turn is not None else ""]
        self.letters |= {colour} - {""}
        self.add(f'<text{named(" ".join(filter(None, (kind, colour))))} x="{number(x)}" y="{number(y)}"{"".join(" " + d for d in details if d)}>'
                 f'{escape(text)}</text>')

    def line(self, points, kind="grey", width=1.5, arrow=False, dashes="", opacity=1):
        """Through all points; with `arrow` a head at the last one."""
        colour, _, classes = kind.partition(" ")
        stroke = "currentColor" if colour == "ink" else COLOURS[colour]
        path = "M" + " L".join(f"{number(x)} {number(y)}" for x, y in points)
        self.add(f'<path{named(classes)} d="{path}" fill="none" stroke="{stroke}" stroke-width="{number(width)}"'
                 + (f' stroke-dasharray="{dashes}"' if dashes else "") + (f' opacity="{number(opacity)}"' if opacity != 1 else "")
                 + "/>")
        if arrow:
            (x0, y0), (x1, y1) = points[-2:]
            length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
            ux, uy = (x1 - x0) / length, (y1 - y0) / length
            corners = [(x1, y1), (x1 - 8 * ux + 4 * uy, y1 - 8 * uy - 4 * ux), (x1 - 8 * ux - 4 * uy, y1 - 8 * uy + 4 * ux)]
            self.add(f'<path{named(classes)} d="M' + " L".join(f"{number(x)} {number(y)}" for x, y in corners)
                     + f' Z" fill="{stroke}"/>')

    def svg(self):
        style = [f"#{self.name} {{ color: #1f2328; font: 14px system-ui, sans-serif; }}", f"#{self.name} text {{ fill: currentColor; }}",
                 f"@media (prefers-color-scheme: dark) {{ #{self.name} {{ color: #e6edf3; }} }}"]
        for colour in sorted(self.letters):
            light, dark = LETTERS[colour]
            style += [f"#{self.name} .{colour} {{ fill: {light}; }}",
                      f"@media (prefers-color-scheme: dark) {{ #{self.name} .{colour} {{ fill: {dark}; }} }}"]
        style += [line for line in self.style.replace("{id}", f"#{self.name}").splitlines() if line.strip()]
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" id="{self.name}" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" aria-labelledby="{self.name}-title {self.name}-desc">',
            f'<title id="{self.name}-title">{escape(self.title)}</title>',
            f'<desc id="{self.name}-desc">{escape(self.description)}</desc>',
            "<style>", *style, "</style>", *self.shapes, "</svg>", ""])


def named(classes):
    return f' class="{classes}"' if classes else ""


def pictures():
    """The names of all pictures: of the scripts that write one."""
    return [path.stem for path in sorted(FOLDER.glob("*.py")) if "write(__file__)" in path.read_text(encoding="utf-8").split()[-1]]


def draw(name):
    sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name).draw().svg()


def write(file):
    """What each script does when it is run."""
    name = Path(file).stem
    (FOLDER / f"{name}.svg").write_text(draw(name), encoding="utf-8")


if __name__ == "__main__":
    for each in pictures():
        (FOLDER / f"{each}.svg").write_text(draw(each), encoding="utf-8")
