"""Whole graphs, how they are partitioned, and their parts in memory and on disk."""
