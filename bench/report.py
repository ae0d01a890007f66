"""The outcome as a table for people and as JSON for machines.

Both say the same: medians, ratios to nginx, what relayd is allowed, and every reason to doubt a figure.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from bench.figures import Figure, figures_of
from bench.measure import Sizes
from bench.session import DIRECT, Outcome

NOTHING = "-"


def as_table(outcome: Outcome, rows: tuple[str, ...], sizes: Sizes, versions: dict[str, str]) -> str:
    """Returns the table with its notes."""
    compared = _compared(outcome)
    has_ceiling = "relayd" in outcome.columns
    header = ["", *outcome.columns, *(f"{column}/nginx" for column in compared)]
    lines = [[*header, "ceiling"] if has_ceiling else header]
    for figure in figures_of(rows):
        if not _has_anything(outcome, figure):
            continue
        cells = [
            _title(figure, outcome, sizes),
            *(_cell(outcome, figure, column) for column in outcome.columns),
        ]
        cells += [_ratio(outcome, figure, column) for column in compared]
        lines.append([*cells, _ceiling(figure, outcome)] if has_ceiling else cells)
    parts = [_aligned(lines)]
    if legend := _versions(versions):
        parts.append(legend)
    if notes := outcome.notes() + _verdicts(outcome, rows, sizes):
        parts.append("\n".join(f"  {note}" for note in notes))
    return "\n\n".join(parts)


def as_json(
    outcome: Outcome,
    rows: tuple[str, ...],
    sizes: Sizes,
    versions: dict[str, str],
    machine: dict[str, object],
) -> dict[str, Any]:
    """Returns the same as a JSON object, with the figures of every round."""
    return {
        "machine": machine,
        "sizes": asdict(sizes),
        "versions": versions,
        "missing": outcome.missing,
        "figures": {figure.key: _figure_json(outcome, figure, sizes) for figure in figures_of(rows)},
        "failed": outcome.spoiled,
        "notes": outcome.notes(),
        "bystanders": outcome.foreign,
        "core_distances_ns": outcome.distances_ns,
    }


def _figure_json(outcome: Outcome, figure: Figure, sizes: Sizes) -> dict[str, Any]:
    return {
        "title": _title(figure, outcome, sizes).strip(),
        "medians": {column: outcome.value(figure, column) for column in outcome.columns},
        "ratios_to_nginx": {column: outcome.ratio(figure, column) for column in _compared(outcome)},
        "rounds": {column: outcome.samples(figure, column) for column in outcome.columns},
        "ceiling": figure.ceiling,
        "ceiling_is_ratio": figure.ceiling_is_ratio,
        "guarded_ceiling": figure.guarded_ceiling,
    }


def _compared(outcome: Outcome) -> list[str]:
    """The columns that get a ratio."""
    others = [column for column in outcome.columns if column not in (DIRECT, "nginx")]
    return others if "nginx" in outcome.columns else []


def _has_anything(outcome: Outcome, figure: Figure) -> bool:
    """False for what could not be asked: processor time and memory of a process that nobody named."""
    return bool(outcome.missing) or any(
        outcome.is_spoiled(figure.row, column) or outcome.value(figure, column) is not None
        for column in outcome.columns
    )


def _title(figure: Figure, outcome: Outcome, sizes: Sizes) -> str:
    title = figure.title if DIRECT in outcome.columns else figure.title.removeprefix("added ")
    return title.format(connections=sizes.connections, streams=sizes.streams, held=sizes.held)


def _cell(outcome: Outcome, figure: Figure, column: str) -> str:
    """One figure.  The direct column of an added one is the whole that the others add to, and says so."""
    if outcome.is_spoiled(figure.row, column):
        return "FAILED"
    value = outcome.value(figure, column)
    if value is None:
        return "missing" if column in outcome.missing else NOTHING
    text = f"{value:,.{figure.digits}f}"
    if not figure.added or DIRECT not in outcome.columns:
        return text
    return f"({text})" if column == DIRECT else f"{value:+,.{figure.digits}f}"


def _ratio(outcome: Outcome, figure: Figure, column: str) -> str:
    ratio = outcome.ratio(figure, column)
    return NOTHING if ratio is None else f"{ratio:.2f}x"


def _ceiling(figure: Figure, outcome: Outcome) -> str:
    if figure.ceiling is None:
        return ""
    text = f"{figure.ceiling:.1f}x" if figure.ceiling_is_ratio else f"{figure.ceiling:.0f}"
    if figure.guarded_ceiling is None or "guarded" not in outcome.columns:
        return text
    return f"{text} (guarded {figure.guarded_ceiling:.1f}x)"


def _verdicts(outcome: Outcome, rows: tuple[str, ...], sizes: Sizes) -> list[str]:
    """One line for each ceiling that relayd is above."""
    above = []
    for figure in figures_of(rows):
        measure = outcome.ratio if figure.ceiling_is_ratio else outcome.value
        unit = "x nginx's" if figure.ceiling_is_ratio else ""
        title = _title(figure, outcome, sizes)
        for column, ceiling in (("relayd", figure.ceiling), ("guarded", figure.guarded_ceiling)):
            value = measure(figure, column) if ceiling and column in outcome.columns else None
            if value is not None and ceiling is not None and value > ceiling:
                above.append(f"ABOVE THE CEILING: {title}, {column}: {value:.2f}{unit}, ceiling {ceiling:g}")
    return above


def _versions(versions: dict[str, str]) -> str:
    named = [f"{column}: {text}" for column, text in versions.items() if text]
    legend = (
        "(...) is the whole time without a gateway, + what a gateway adds to it" if DIRECT in versions else ""
    )
    return "\n".join(f"  {line}" for line in (*named, legend) if line)


def _aligned(lines: list[list[str]]) -> str:
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            [
                line[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for line in lines
    )
