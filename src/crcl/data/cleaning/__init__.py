"""Writing data again without the suspects or with correspondences, one module for each kind of container."""
