"""``python -m fullgraph.cli``, for torchrun and where the script is not on the path."""

from fullgraph.cli import main

main()
