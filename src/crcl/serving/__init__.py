"""The page: review of an audit, and search with its run, served to browsers on this machine."""
