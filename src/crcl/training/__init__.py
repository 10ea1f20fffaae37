"""From a config to a trained run: inputs, loop, resuming, importing."""
