"""Learn from image-caption pairs that are partly wrong."""

__version__ = "0.1.0"
