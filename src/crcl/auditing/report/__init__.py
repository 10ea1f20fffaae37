"""An audit as a page to look at."""
