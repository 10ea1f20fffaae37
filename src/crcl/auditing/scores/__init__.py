"""Scores of pairs without training, one module each. All are low for suspects."""
