"""The public functions: each is short and calls the packages below. `import crcl` loads them on first use."""
