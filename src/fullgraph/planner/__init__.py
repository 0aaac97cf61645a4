"""Predicting bytes, memory and seconds of every placement and schedule, and choosing among them."""
