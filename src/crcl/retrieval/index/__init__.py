"""Search: vectors of images and captions in a folder, and the nearest of them to a sentence or a photo."""
