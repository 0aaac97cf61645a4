"""What a run says of itself: events, a line each, for people or as JSON."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime, timezone
from typing import Any

# On a terminal these are shown otherwise: by the progress bar, or by a line on stderr.
SHOWN_OTHERWISE = ("epoch", "checkpoint", "restart", "failure")


class Log:
    """Writes events, each in one piece.

    On a terminal an event is its text. Where stdout is a file or a pipe, time and rank come first.
    As JSON it is an object of "time", "rank", "event", "message" and the event's own fields.

    Args:
        rank: who writes; None for the process that starts the workers.
        quiet: stdout is for something else: JSON goes to stderr, and text nowhere.
        as_json: JSON rather than text.
    """

    def __init__(
        self, rank: int | None = None, quiet: bool = False, as_json: bool = False
    ) -> None:  # fmt: skip
        self.rank, self.quiet, self.as_json = rank, quiet, as_json
        self.on_terminal = not quiet and not as_json and sys.stdout.isatty()

    def __call__(self, event: str, text: str, **fields: Any) -> None:
        """fields: plain values."""
        if (self.quiet and not self.as_json) or (self.on_terminal and event in SHOWN_OTHERWISE):
            return
        if not self.on_terminal:
            text = re.sub(r"\s*\n\s*", "; ", text.strip())
            now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
            now = now.replace("+00:00", "Z")
            if self.as_json:
                base = {"time": now, "rank": self.rank, "event": event, "message": text}
                text = json.dumps({**fields, **base}, allow_nan=False)
            else:
                text = f"{now} {'launcher' if self.rank is None else f'rank {self.rank}'} {text}"
        stream = sys.stderr if self.quiet else sys.stdout
        stream.write(text + "\n")
        stream.flush()
