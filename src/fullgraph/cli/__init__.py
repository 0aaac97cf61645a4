"""The command line: `fullgraph train`, `predict`, `partition`, `info`, `plan`.

Commands import torch when they run, so that help and mistyped options are answered at once.
"""

from __future__ import annotations

import sys

import typer

from fullgraph.cli.console import fail
from fullgraph.cli.info import info
from fullgraph.cli.partition import partition
from fullgraph.cli.plan import plan
from fullgraph.cli.predict import predict
from fullgraph.cli.train import train

app = typer.Typer(
    help="Train graph neural networks on the whole graph, exactly, on as many workers as it takes.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip
for command in (train, predict, partition, info, plan):
    app.command()(command)


def main() -> None:
    """Run a command. A mistake in its options is one line on stderr, and exit code 2."""
    try:
        code = app(prog_name="fullgraph", standalone_mode=False)
    except typer.Abort:
        code = 130
    except Exception as error:
        # Typer carries its own copy of click or uses click's; their errors share this method.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if text := message():
            fail(f"{text} (see fullgraph --help)", code=None)
        code = getattr(error, "exit_code", 2)
    sys.exit(code if isinstance(code, int) else 0)
