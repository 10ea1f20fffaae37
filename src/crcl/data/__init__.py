"""Pairs of images and captions: reading them, noise, decoys, batches, built-in scenes."""
