"""Arrays in files that are mapped into memory: several files as one array, archives, and reading ahead."""
