"""Profiles as text, HTML and a roofline drawing."""

from __future__ import annotations

from html import escape
from math import log10
from typing import TYPE_CHECKING

from rdna_jit.emulator import model
from rdna_jit.emulator.classes import classify

if TYPE_CHECKING:
    from rdna_jit.emulator.profile import Profile


class Svg(str):
    """SVG text that notebooks draw."""

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self)


def issue_clocks(mnemonic: str) -> float:
    """Clocks of its unit that an instruction takes, for shares."""
    classes = classify(mnemonic)
    if classes[0] != "valu":
        return 0.0 if classes[0] == "wait" else 1.0
    if "transcendental" in classes:
        return 1 / model.ISSUE_TRANSCENDENTAL
    if "fp64" in classes:
        return model.FP64_SLOTS / model.ISSUE_FMA
    if "quarter_rate" in classes:
        return model.QUARTER_RATE_SLOTS / model.ISSUE_FMA
    return 1 / model.ISSUE_FMA


def _summary(p: Profile) -> list[tuple[str, str]]:
    bounds = ", ".join(f"{name} {us:.2f}" for name, us in p.estimate.bounds.items())
    ratio = f", {p.time_us / p.floor_us:.2f} x the floor" if p.floor_us else ""
    return [
        ("time", f"{p.time_us:.2f} us on a {p.card.name}, bound by {p.bound_by}{ratio}"),
        ("floor", f"{p.floor_us:.2f} us for the operands, {p.launch_us:.2f} us for a launch"),
        ("bounds", f"{bounds} us"),
        ("start, drain", f"{p.estimate.start_us:.2f} us, {p.estimate.drain_us:.2f} us"),
        ("occupancy", f"{p.occupancy:g} waves per SIMD, {p.waves} waves in all"),
        ("lanes", f"{p.mean_lanes:.1f} of 32 active"),
    ]


_ROWS = (
    ("vector", ("valu", "dot", "packed", "transcendental", "quarter_rate")),
    ("scalar", ("salu", "smem", "branch", "wait", "barrier")),
    ("memory", ("vmem_load", "vmem_store", "atomic", "scratch")),
    ("bytes", ("bytes_loaded", "bytes_stored")),
    ("lines", ("lines_requested", "lines_distinct")),
    ("LDS", ("lds", "lds_cycles", "lds_bank_conflicts")),
)


def text(p: Profile) -> str:
    """A short table for a terminal."""
    lines = [f"{p.kernel} ({p.arch}), grid {p.grid}, block {p.block}"]
    lines += [f"  {name:<13} {value}" for name, value in _summary(p)]
    for title, names in _ROWS:
        values = "  ".join(f"{name} {p.counters[name]:,}" for name in names)
        lines.append(f"  {title:<13} {values}")
    return "\n".join(lines)


def html(p: Profile) -> str:
    """The same with the hottest instructions and the roofline."""
    head = "".join(f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in _summary(p))
    rows = "".join(
        f"<tr><th>{escape(title)}</th><td>"
        + ", ".join(f"{escape(n)} {p.counters[n]:,}" for n in names)
        + "</td></tr>"
        for title, names in _ROWS
    )
    hot = "".join(
        f"<tr><td>{spot.share:.1%}</td><td>{spot.count:,}</td>"
        f"<td><code>{escape(spot.text)}</code></td><td>{escape(spot.source)}</td></tr>"
        for spot in p.hot()
    )
    return (
        f"<h4>{escape(p.kernel)} ({escape(p.arch)}), grid {p.grid}, block {p.block}</h4>"
        f"<table>{head}{rows}</table>"
        "<table><tr><th>share</th><th>count</th><th>instruction</th><th>source</th></tr>"
        f"{hot}</table>{roofline(p)}"
    )


_WIDTH, _HEIGHT, _MARGIN = 520, 320, 48


def roofline(p: Profile) -> Svg:
    """Work per byte against rate, both in vector instructions per lane.

    Roofs are DRAM, L2 and the issue rate; the dot is the kernel at its estimated time, the ring
    above it what its intensity would allow.
    """
    lanes = 32 * p.valu
    nbytes = max(p.lines_distinct * model.LINE_BYTES, 1)
    peak = p.card.simds * 32 * p.card.clock_ghz * model.ISSUE_FMA  # G lane-instructions a second
    intensity = max(lanes / nbytes, 1e-3)
    reached = max(lanes / p.time_us / 1e3, 1e-3)
    allowed = min(peak, intensity * p.card.read_gbs)
    low = min(-2.0, log10(intensity) - 0.5)
    high = max(3.0, log10(intensity) + 0.5)
    top = log10(peak) + 0.5
    bottom = min(log10(reached), log10(peak) - 3) - 0.5

    def at(x: float, y: float) -> tuple[float, float]:
        across = (log10(x) - low) / (high - low)
        up = (log10(y) - bottom) / (top - bottom)
        return (
            _MARGIN + across * (_WIDTH - 2 * _MARGIN),
            _HEIGHT - _MARGIN - up * (_HEIGHT - 2 * _MARGIN),
        )

    def roof(gbs: float, name: str, colour: str) -> str:
        start, knee = 10**low, peak / gbs
        if start * gbs < 10**bottom:
            start = 10**bottom / gbs
        x1, y1 = at(start, start * gbs)
        x2, y2 = at(knee, peak)
        x3, y3 = at(max(10**high, knee), peak)
        return (
            f'<polyline points="{x1:.1f},{y1:.1f} {x2:.1f},{y2:.1f} {x3:.1f},{y3:.1f}" '
            f'fill="none" stroke="{colour}"/>'
            f'<text x="{x2 + 4:.1f}" y="{y2 - 6:.1f}" fill="{colour}">{name}</text>'
        )

    x, y = at(intensity, reached)
    _, y_allowed = at(intensity, allowed)
    return Svg(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="11">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
        f'<text x="{_MARGIN}" y="18">{escape(p.kernel)} on {escape(p.card.name)}: '
        f"{p.time_us:.2f} us, bound by {p.bound_by}, floor {p.floor_us:.2f} us</text>"
        + roof(p.card.read_gbs, "DRAM", "#1f77b4")
        + roof(p.card.l2_gbs, "L2", "#9467bd")
        + f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x:.1f}" y2="{y_allowed:.1f}" stroke="#bbb"/>'
        f'<circle cx="{x:.1f}" cy="{y_allowed:.1f}" r="4" fill="none" stroke="#d62728"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#d62728"/>'
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">'
        "vector instructions x lanes per byte of distinct lines</text>"
        f'<text x="14" y="{_HEIGHT / 2:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {_HEIGHT / 2:.0f})">10^9 lane instructions per second</text>'
        "</svg>"
    )
