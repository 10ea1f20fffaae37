"""Which pairs are wrong: thresholds by decoys, suggestions, the report, cleaned data."""
