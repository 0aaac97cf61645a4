"""Operators with gradients over distributed rows."""
