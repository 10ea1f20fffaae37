"""Pairs as rows: parsing tables, splits of rows, and the features that belong to them."""
