"""Curves as an SVG, by hand: no library is worth its weight for a few lines."""

import os

WIDTH, HEIGHT, LEFT, TOP = 640, 320, 56, 44


def draw(path, title, across, up, lines, bounds):
    """`lines` are (name, colour, [(x, y)]); what is below the lower bound is left out."""
    low, high = bounds
    right = max(x for _, _, points in lines for x, _ in points)
    place_x = lambda x: LEFT + WIDTH * x / right
    place_y = lambda y: TOP + HEIGHT * (high - y) / (high - low)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 24}" height="{TOP + HEIGHT + 52}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{title}</text>',
        f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>',
        f'<text x="{LEFT + WIDTH}" y="{TOP + HEIGHT + 38}" text-anchor="end" fill="#555">{across}</text>',
        f'<text x="{LEFT + 8}" y="{TOP + 16}" fill="#555">{up}</text>',
    ]
    for tick in range(int(low), int(high) + 1, max(1, int(high - low) // 10)):
        y = place_y(tick)
        out.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{tick}</text>')
    for part in range(5):
        x = right * part / 4
        out.append(f'<text x="{place_x(x):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle" fill="#555">{x:,.0f}</text>')
    for at, (name, colour, points) in enumerate(lines):
        shown = [(place_x(x), place_y(y)) for x, y in points if y >= low]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in shown)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in shown)
        y = TOP + HEIGHT - 14 - 18 * (len(lines) - 1 - at)
        out.append(f'<text x="{LEFT + WIDTH - 10}" y="{y}" text-anchor="end" fill="{colour}">{name}</text>')
    out.append("</svg>\n")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("\n".join(out))
