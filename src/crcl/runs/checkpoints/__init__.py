"""Reading checkpoints: published by the authors of methods, and pickled ones with nothing in them run."""
