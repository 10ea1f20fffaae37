"""Captions as numbers: vocabularies, subwords, vectors."""
