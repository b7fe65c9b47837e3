#!/usr/bin/env python3
"""Draws the pictures of ideas.md, many.md, ray.md and llm.md into docs/drawings/, as SVG."""

import pathlib
from xml.sax.saxutils import escape

FOLDER = pathlib.Path(__file__).resolve().parent / "drawings"
BLUE, GREY, ORANGE, WHITE, INK = "#cfe3f7", "#e4e4e4", "#f9d9b0", "#ffffff", "#222222"


class Drawing:
    def __init__(self, width, height, title):
        self.parts = [f"<title>{escape(title)}</title>"]
        self.size = width, height

    def box(self, x, y, width, height, fill, text="", dashed=False):
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" stroke="{INK}"{dash}/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 5, text, "middle")

    def text(self, x, y, text, anchor="start"):
        self.parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>')

    def arrow(self, x1, y1, x2, y2):
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}" marker-end="url(#head)"/>')

    def bracket(self, x1, x2, y, text):
        self.parts.append(f'<path d="M{x1} {y} v8 H{x2} v-8" fill="none" stroke="{INK}"/>')
        self.text((x1 + x2) / 2, y + 26, text, "middle")

    def save(self, name):
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="sans-serif" font-size="14">'
        )
        marker = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
            ' orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>'
        )
        (FOLDER / f"{name}.svg").write_text("\n".join([head, marker, *self.parts, "</svg>"]) + "\n")


def rows_and_lanes():
    """Two environments; in the second an episode ended, and its final observation has a row."""
    drawing = Drawing(700, 190, "Two lanes of eight rows each")
    for lane, cells in enumerate(("s s s s s s n", "s s s F s s n")):
        y = 30 + 80 * lane
        drawing.text(10, y + 26, f"environment {lane}")
        for k in range(8):
            kind = cells.split()[k] if k < 7 else " "
            fill = {"s": BLUE, "F": ORANGE, "n": WHITE}.get(kind, WHITE)
            drawing.box(120 + 70 * k, y, 70, 40, fill, f"id {2 * k + lane}" if kind in "sF" else "", kind not in "sF")
    drawing.text(120, 20, "row 0")
    drawing.arrow(170, 15, 660, 15)
    drawing.text(366, 172, "final observation of an episode", "middle")
    drawing.save("rows")


def windows():
    """n_step 3 within an episode, at its end, and in an episode that continues."""
    drawing = Drawing(700, 190, "Which transitions of an episode can be drawn with n_step 3")
    labels = ["live", "live", "live", "live", "final", "live", "waits", "waits", "next"]
    for k, label in enumerate(labels):
        fill = {"live": BLUE, "final": ORANGE, "waits": GREY}.get(label, WHITE)
        drawing.box(30 + 70 * k, 50, 70, 40, fill, label, label == "next")
    drawing.text(30, 30, "first episode, truncated")
    drawing.text(380, 30, "second episode, still going on")
    drawing.bracket(32, 238, 96, "window of row 0: three rewards")
    drawing.bracket(382, 588, 96, "window of row 5: three rewards")
    drawing.bracket(242, 308, 146, "window of row 3: one reward, and the final observation to bootstrap from")
    drawing.text(485, 140, "rows 6 and 7 wait until theirs are complete", "middle")
    drawing.save("windows")


def channels():
    """Two actors, their rings, and the learner's process."""
    drawing = Drawing(700, 230, "Actors write to rings in shared memory; the library moves steps into the buffer")
    for actor, filled in enumerate((5, 2)):
        y = 40 + 90 * actor
        drawing.box(10, y, 110, 50, BLUE, f"actor {actor}")
        drawing.arrow(120, y + 25, 165, y + 25)
        for slot in range(8):
            drawing.box(170 + 26 * slot, y + 5, 26, 40, ORANGE if 2 <= slot < 2 + filled else WHITE)
        drawing.arrow(382, y + 25, 455, 95 + 20 * actor)
    drawing.text(170, 28, "rings in shared memory")
    drawing.text(425, 66, "add")
    drawing.box(460, 60, 230, 110, GREY, dashed=True)
    drawing.text(470, 78, "learner's process")
    drawing.box(475, 90, 90, 60, BLUE, "buffer")
    drawing.arrow(565, 120, 605, 120)
    drawing.box(605, 95, 75, 50, WHITE, "learner")
    drawing.text(10, 212, "Each ring has one writer at a time, and environments of its own.")
    drawing.save("channels")


def readers():
    """The buffer's process, slots in shared memory, and two learners."""
    drawing = Drawing(700, 230, "Batches lie in shared memory; readers send priorities back")
    drawing.box(10, 50, 205, 120, GREY, dashed=True)
    drawing.text(20, 68, "process of the buffer")
    drawing.box(25, 85, 90, 60, BLUE, "buffer")
    drawing.arrow(115, 115, 140, 115)
    drawing.box(140, 90, 65, 50, WHITE, "thread")
    drawing.text(265, 28, "slots in shared memory")
    for slot in range(5):
        drawing.box(265 + 34 * slot, 45, 34, 50, ORANGE if slot in (0, 3) else BLUE if slot < 3 else WHITE)
    drawing.arrow(207, 100, 262, 72)
    drawing.text(265, 170, "priorities")
    drawing.box(265, 130, 170, 24, WHITE)
    for update in range(2):
        drawing.box(265 + 40 * update, 130, 40, 24, BLUE)
    drawing.arrow(262, 142, 207, 125)
    for learner in range(2):
        y = 40 + 90 * learner
        drawing.box(560, y, 120, 50, BLUE, f"learner {learner}")
        drawing.arrow(438, 70, 556, y + 15)
        drawing.arrow(556, y + 38, 438, 142)
    drawing.text(10, 212, "Orange slots are out: each has one reader, and is not written until it is given back.")
    drawing.save("readers")


def shards():
    """Actors that write to shards, the coordinator, and a learner."""
    drawing = Drawing(700, 260, "Shards hold the rows; a coordinator draws from all of them as from one buffer")
    for shard in range(3):
        y = 40 + 62 * shard
        drawing.box(10, y, 100, 40, BLUE, f"actor {shard}")
        drawing.arrow(112, y + 20, 236, y + 20)
        drawing.box(240, y, 140, 40, BLUE, f"shard {shard}")
        drawing.arrow(536, 62 + 6 * shard, 384, y + 12)
        drawing.arrow(384, y + 28, 536, 178 + 6 * shard)
    drawing.text(174, 50, "steps", "middle")
    drawing.text(460, 36, "units of mass", "middle")
    drawing.text(460, 222, "rows", "middle")
    drawing.box(540, 40, 150, 50, WHITE, "coordinator")
    drawing.box(540, 160, 150, 50, WHITE, "learner")
    drawing.arrow(575, 158, 575, 94)
    drawing.arrow(620, 92, 620, 156)
    drawing.text(567, 130, "asks", "end")
    drawing.text(628, 130, "ids,")
    drawing.text(628, 147, "weights")
    drawing.text(10, 248, "Each box is a process, on any machine. Each shard has environments of its own.")
    drawing.save("shards")


def groups():
    """The states of a group of per.llm, and the calls that lead from one to the next."""
    drawing = Drawing(750, 210, "A group is open, sealed, leased, and then consumed; or it is retired")
    drawing.box(250, 12, 310, 98, WHITE, dashed=True)
    drawing.text(405, 30, "stored", "middle")
    for place, state in enumerate(("open", "sealed", "leased", "consumed")):
        drawing.box(75 + 190 * place, 50, 90, 44, GREY if state == "consumed" else BLUE, state)
    drawing.arrow(8, 72, 72, 72)
    drawing.text(38, 64, "reserve", "middle")
    for place, call in enumerate(("last close", "sample", "ack")):
        drawing.arrow(165 + 190 * place, 64, 261 + 190 * place, 64)
        drawing.text(213 + 190 * place, 56, call, "middle")
    drawing.arrow(452, 82, 358, 82)
    drawing.text(405, 100, "release", "middle")
    drawing.box(265, 150, 90, 44, ORANGE, "retired")
    drawing.arrow(120, 96, 262, 168)
    drawing.arrow(310, 96, 310, 147)
    drawing.text(322, 134, "fail, or too old")
    drawing.text(375, 178, "counted by reason and tag")
    drawing.save("groups")


def cuts():
    """A step whose observation differs from the announced one."""
    drawing = Drawing(700, 150, "A step that does not follow from the one before is cut off from it")
    for k, (name, announced) in enumerate((("a", "b"), ("b", "c"), ("x", "y"), ("y", "z"))):
        x = 30 + 165 * k
        drawing.box(x, 40, 60, 40, BLUE, name)
        drawing.arrow(x + 62, 60, x + 98, 60)
        drawing.box(x + 100, 40, 45, 40, ORANGE if k == 1 else WHITE, announced, k != 1)
    drawing.text(30, 25, "observed")
    drawing.text(130, 25, "announced")
    drawing.text(362, 25, "x is not c", "middle")
    drawing.arrow(345, 108, 345, 30)
    drawing.text(345, 130, "cut: the step from b ends an episode, truncated at c", "middle")
    drawing.save("cuts")


def masses():
    """Priorities 1, 0, 2.5 and 0.5 as integers, and the units that strata pick."""
    drawing = Drawing(700, 170, "Leaves as whole numbers of units")
    leaves = [(0, 2, "p = 1, mass 2"), (2, 5, "p = 2.5, mass 5"), (7, 1, "p = 0.5")]
    for first, count, text in leaves:
        drawing.box(30 + 80 * first, 40, 80 * count, 50, (BLUE, GREY, ORANGE)[leaves.index((first, count, text))], text)
    for unit in range(9):
        drawing.text(30 + 80 * unit, 110, str(unit), "middle")
    for stratum in range(4):
        x = 30 + 160 * stratum
        drawing.bracket(x + 3, x + 157, 120, f"part {stratum}")
    drawing.text(30, 25, "eight units in all; the leaf of priority 0 has none; a draw names a unit")
    drawing.save("masses")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for draw in (rows_and_lanes, windows, cuts, masses, channels, readers, shards, groups):
        draw()
