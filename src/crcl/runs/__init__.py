"""The run folder: everything that a training leaves."""
