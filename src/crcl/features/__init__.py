"""From images to numbers: the pixel grid, vision models, extraction with its cache."""
