"""Scoring and evaluation with what was trained, and its export."""
