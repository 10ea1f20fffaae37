"""The front door: short functions that call the rooms below. `import crcl` offers them, loaded when first used."""
