"""Local matchers: regions of an image compared with the words of a text, one module each."""
