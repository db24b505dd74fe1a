"""Draw docs/figures/loop.svg: a batch of texts on its way through an encoder with three exits.

python benchmarks/draw_loop.py
"""

from __future__ import annotations

from pathlib import Path

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "loop.svg"

# colours that work on a white and on a dark page; the background is transparent
GREY, BLUE, ORANGE, GREEN = "#808a96", "#0072b2", "#b34e00", "#007a5a"
STROKE = f'stroke="{GREY}" stroke-width="2" marker-end="url(#head)"'
ROWS = (90, 82, 74, 66, 56, 48, 40, 30)  # lengths of the texts of a batch, longest first
EXITS = {"Exit 1": (7, 5, 2, 0), "Exit 2": (6, 1), "Exit 3": (3, 4)}  # which of them stop where
LAYERS = ("Layers 1–3", "Layers 4–6", "Layers 7–12")
TOP, STEP, BAR = 62, 17, 11
BLOCK, GAP, HEAD = 92, 116, 96


def text(x: float, y: float, words: str, colour: str = GREY, size: int = 14, weight: str = "normal") -> str:
    """Centred words."""
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size}" font-weight="{weight}">{words}</text>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    """A filled box with round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" fill="{colour}"/>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line with a head."""
    return f'<path d="M{x1:g} {y1:g} L{x2:g} {y2:g}" {STROKE}/>'


def batch(x: float, rows: list[int]) -> list[str]:
    """The rows of a batch, each padded to the longest of them."""
    longest = max(ROWS[row] for row in rows)
    parts = []
    for index, row in enumerate(rows):
        y = TOP + STEP * index
        outline = f'width="{longest}" height="{BAR}" fill="none" stroke="{GREY}" stroke-dasharray="2 2"'
        parts.append(f'<rect x="{x:g}" y="{y}" {outline}/>')
        parts.append(f'<rect x="{x:g}" y="{y}" width="{ROWS[row]}" height="{BAR}" fill="{GREY}"/>')
    return parts


def main() -> None:
    """Write the figure."""
    bottom = TOP + STEP * len(ROWS)
    decided, answered = bottom + 26, bottom + 132
    rows, x = list(range(len(ROWS))), 8.0
    parts = []
    for layers, (name, exited) in zip(LAYERS, EXITS.items(), strict=True):
        parts += batch(x, rows)
        parts.append(text(x + 45, TOP - 14, f"{len(rows)} texts"))
        x += GAP
        parts.append(arrow(x - 24, TOP + 14, x - 4, TOP + 14))
        parts += [box(x, TOP, BLOCK, STEP * len(ROWS) - 6, BLUE), text(x + BLOCK / 2, TOP + 70, layers, "#fff", 15)]
        centre = x + BLOCK / 2
        parts.append(arrow(centre, bottom - 4, centre, decided - 4))
        is_last = name == "Exit 3"
        parts += [box(centre - HEAD / 2, decided, HEAD, 46, ORANGE)]
        parts.append(text(centre, decided + 19, f"{name}: head", "#fff", 14))
        parts.append(text(centre, decided + 37, "all rows exit" if is_last else "+ policy", "#fff", 14))
        parts.append(arrow(centre, decided + 48, centre, answered - 4))
        parts.append(text(centre + 32, decided + 70, f"{len(exited)} exit"))
        rows = [row for row in rows if row not in exited]
        x += BLOCK + 18
        if not is_last:
            line = f"M{centre + HEAD / 2 + 2:g} {decided + 23} H{x + 36:g} V{TOP + STEP * len(rows) + 12}"
            parts.append(f'<path d="{line}" {STROKE} fill="none"/>')
            parts.append(text(x + 36, decided + 42, f"{len(rows)} continue", size=13))
    width = x - 8
    parts += [box(8, answered, width - 16, 34, GREEN)]
    parts.append(text(width / 2, answered + 22, "Predictions and exit layers, in the order of the input", "#fff", 15))
    parts.append(
        text(width / 2, 22, "One batch, three exits on 12 layers: rows that exit are removed, padding is trimmed")
    )
    head = '<marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {answered + 44}" role="img" '
            'font-family="Helvetica, Arial, sans-serif" text-anchor="middle">'
        ),
        "<title>How a batch passes through an encoder with early exits</title>",
        f'<defs>{head}<path d="M0 0 L8 4 L0 8 z" fill="{GREY}"/></marker></defs>',
        *parts,
        "</svg>",
    ]
    FIGURE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
