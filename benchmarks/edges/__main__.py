"""Measures each edge on a broker of its own; the last line is JSON with the figures of each.

python -m benchmarks.edges [sink] [http]
"""

from __future__ import annotations

import importlib
import importlib.util
import json

import click

EDGES = [name for name in ("sink", "http") if importlib.util.find_spec(f"benchmarks.edges.{name}")]


@click.command()
@click.argument("edges", nargs=-1, type=click.Choice(EDGES))
def main(edges: tuple[str, ...]) -> None:
    """Measure edges, all by default."""
    report = {name: importlib.import_module(f"benchmarks.edges.{name}").measure() for name in edges or EDGES}
    click.echo(json.dumps(report))


if __name__ == "__main__":
    main()
