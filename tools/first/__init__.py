"""The first run on a new machine: what is behind ./tools/quickstart."""
