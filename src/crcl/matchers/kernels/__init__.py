"""What makes matchers fast: pooling, recurrent layers, distances, tiles."""
