"""Layouts of one text file with captions of images that lie elsewhere: JSON documents and tab-separated lists."""
