"""The staircase as a drawing: its branches, how long each lesson is, which files move to the library, and the
detours."""

from html import escape

from step_commands.diff import lines
from step_commands.series import BRANCHES, ROOT, landed_files

PICTURE = ROOT / "docs/pictures/staircase.svg"

TREAD, RISE = 22, 21      # how far a step is to the right of the one below it, and above
PER_LINE = 0.5            # a lesson's length in the picture
LABELS = 190              # room for a name to the left of a row
BAR = 15
# Hues that colour-blind readers can tell apart (Okabe and Ito 2008), one per row, in a light and a dark scheme.
HUES = [("#0072b2", "#56b4e9"), ("#b45309", "#e69f00"), ("#00805f", "#2fc39a"), ("#a8458a", "#e08fc2"),
        ("#8a6d00", "#d8c24a")]


def flights(series):
    """[[steps]]: each goes from a step up through its branch, and a step that leaves it begins a row of its own.
    Detours are in none."""
    found = []

    def climb(step):
        flight = [step]
        found.append(flight)
        branches = []
        while True:
            ways = [child for child in flight[-1].children if not child.detour]
            following = series[min(series.index(flight[-1]) + 1, len(series) - 1)]
            onward = next((child for child in ways
                           if child is following and child.branch() == flight[-1].branch()), None)
            branches += [child for child in ways if child is not onward]
            if not onward:
                break
            flight.append(onward)
        for branch in sorted(branches, key=lambda step: int(step.number)):
            climb(branch)

    climb(series[0])
    return found


def title(flight):
    """The branch that begins here, or the step that it leaves."""
    first = flight[0]
    begins = not first.parent or any(first.slug in beginners for *_, beginners in BRANCHES)
    whence = f", from {first.parent.number}" if first.parent else f", {first.number} to {flight[-1].number}"
    return first.branch() + whence if begins else f"from {first.parent.heading()}"


class Drawing:
    def __init__(self, link=None):
        self.parts, self.link = [], link
        self.right = 0

    def text(self, x, y, words, kind="", anchor="start"):
        of = f' class="{kind}"' if kind else ""
        end = f' text-anchor="{anchor}"' if anchor != "start" else ""
        return f'<text x="{x:g}" y="{y:g}"{of}{end}>{escape(words)}</text>'

    def step(self, step, x, y, flight, landed, counts):
        """One step with its tread at (x, y), its name in front of it; that of a detour after it. Returns its end."""
        added, removed = counts
        length = max(6, added * PER_LINE)
        size = f"+{added}" + (f" −{removed}" if removed else "")
        told = f"{step.heading()}: {step.summary()} {size} lines"
        if landed:
            told += f"; {', '.join(landed)} {'is' if len(landed) == 1 else 'are'} finished here"
        name, words = x - 8, 7.2 * len(step.heading())
        end = x + length + (17 if landed else 7)
        if step.detour:
            name, end = end, end + words + 4
        part = (f'<g class="step f{flight}{" room" if step.detour else ""}"><title>{escape(told)}</title>'
                f'<rect class="area" x="{x if step.detour else name - words:g}" y="{y}" '
                f'width="{words + 8 + length:g}" height="{RISE}"/>'
                + self.text(name, y + 15, step.heading(), anchor="start" if step.detour else "end")
                + f'<rect class="bar" x="{x:g}" y="{y + 3}" width="{length:g}" height="{BAR}" rx="2"/>')
        if landed:
            part += f'<circle cx="{x + length + 9:g}" cy="{y + 10.5:g}" r="3.2"/>'
        part += self.text(end, y + 14.5, size, "size") + "</g>"
        if self.link:
            part = f'<a href="{escape(self.link(step))}">{part}</a>'
        self.parts.append(part)
        end += 6.3 * len(size)
        self.right = max(self.right, end)
        return end


def svg(series, link=None):
    """The drawing; with `link`, which gives a step's address, each step leads to its page."""
    library = landed_files(series)
    owned = {step: [landed.name for landed in library.values() if landed.owner is step] for step in series}
    counts = {step: lines(step) for step in series}
    all_flights = flights(series)
    rooms = {step: [child for child in step.children if child.detour] for step in series}
    drawing = Drawing(link)
    main, others = all_flights[0], all_flights[1:]

    def draw(flight, number, left, foot, title):
        """Draws a row whose first step is at `left` and above `foot`; returns the height of its top."""
        drawing.parts.append(drawing.text(left + 4, foot + 17, title, "title"))
        profile = f"M{left},{foot}" + "".join(f"v-{RISE}h{TREAD}" for _ in flight) + f"V{foot}z"
        drawing.parts.append(f'<path class="stairs f{number}" d="{profile}"/>')
        x, y = left, foot
        for step in flight:
            y -= RISE
            end = drawing.step(step, x, y, number, owned[step], counts[step])
            for room in rooms[step]:
                end = drawing.step(room, end + 12, y, number, owned[room], counts[room])
            x += TREAD
        return y

    between = 42  # one row and the title of the one above
    total = 8 + max(len(main) * RISE + 70, sum(len(flight) * RISE + between for flight in others))
    foot = total - between + 12
    draw(main, 0, LABELS - 44, foot, title(main))
    left = LABELS + len(main) * TREAD + 150
    for number, flight in enumerate(others, 1):
        top = draw(flight, number % len(HUES), left, foot, title(flight))
        foot = top - between
    width = round(drawing.right + 12)

    style = [".staircase { font: 13px system-ui, sans-serif; fill: #24292f; }",
             ".staircase .size { font-size: 11px; fill: #6e7781; }",
             ".staircase .title { font-style: italic; fill: #57606a; }",
             ".staircase .area { fill: transparent; }",
             ".staircase a:is(:hover, :focus) text { text-decoration: underline; }",
             ".staircase .stairs { fill-opacity: 0.07; }",
             ".staircase .room .bar { fill-opacity: 0.12; stroke-width: 1.4; stroke-dasharray: 3 2; }"]
    dark = [".staircase { fill: #e6edf3; }", ".staircase .size { fill: #8b949e; }",
            ".staircase .title { fill: #9aa4af; }"]
    for number, (light_hue, dark_hue) in enumerate(HUES):
        for rules, hue in ((style, light_hue), (dark, dark_hue)):
            rules.append(f".staircase .f{number} :is(.bar, circle) {{ fill: {hue}; stroke: {hue}; }}")
            rules.append(f".staircase .stairs.f{number} {{ fill: {hue}; }}")
    if link:  # inside a page, which has its own switch
        scheme = ("\n".join('body[data-theme="dark"] ' + rule for rule in dark) + "\n@media (prefers-color-scheme: dark) {\n"
                  + "\n".join('body:not([data-theme="light"]) ' + rule for rule in dark) + "\n}")
    else:
        scheme = "@media (prefers-color-scheme: dark) {\n" + "\n".join(dark) + "\n}"
    legend = (12, 22)
    words = ["Each step continues the one below it; its bar is as long as its lesson.",
             "●  a file is finished here and becomes part of the library, common/decoding",
             "▭  dashed: a detour, which measures, draws or shows a variant"]
    key = "".join(drawing.text(legend[0], legend[1] + 19 * i, line, "title") for i, line in enumerate(words))
    role = 'role="group"' if link else 'role="img"'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" class="staircase" viewBox="0 0 {width} {total}" width="{width}" '
            f'height="{total}" {role} aria-label="The staircase: {len(series)} steps in {len(all_flights)} branches">\n'
            "<desc>A bar for each step, as long as its lesson, on the bar of the step that it continues.</desc>\n<style>\n"
            + "\n".join(style) + "\n" + scheme + "\n</style>\n" + key + "\n" + "\n".join(drawing.parts) + "\n</svg>\n")


def outline(series, link):
    """The same as lists, for a screen that is too narrow for the drawing."""
    found = []
    for flight in flights(series):
        entries = []
        for step in flight:
            entries.append((step, ""))
            entries += [(child, " (detour)") for child in step.children if child.detour]
        items = (f'<li><a href="{escape(link(step))}">{escape(step.heading())}</a>{kind}</li>' for step, kind in entries)
        found.append(f'<p>{escape(title(flight))}</p><ul>{"".join(items)}</ul>')
    return "".join(found)
