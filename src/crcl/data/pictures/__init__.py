"""Images where they lie: one module for each kind of container that the bytes of images are read from."""
