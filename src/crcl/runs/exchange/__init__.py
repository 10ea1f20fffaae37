"""Verdicts as tables: written to files, read from files of other tools, and matched with the pairs of a run."""
