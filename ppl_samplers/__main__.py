"""``python -m ppl_samplers engines`` prints the table of engines; ``cite NAME`` its references."""

from __future__ import annotations

import argparse

import ppl_samplers
from ppl_samplers.registry import table


def main() -> None:
    """Command line of the package."""
    parser = argparse.ArgumentParser(
        prog="python -m ppl_samplers", description="Sampling engines for NumPyro and Pyro."
    )
    parser.add_argument("--version", action="version", version=ppl_samplers.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("engines", help="the table of engines")
    cite = commands.add_parser("cite", help="what to cite for an engine")
    cite.add_argument("engine", choices=[info.name for info in ppl_samplers.list_engines()])
    arguments = parser.parse_args()
    print(table() if arguments.command == "engines" else ppl_samplers.cite(arguments.engine))


if __name__ == "__main__":
    main()
