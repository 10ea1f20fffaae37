"""Learn from image-caption pairs that are partly wrong."""

__version__ = "0.2.0"
