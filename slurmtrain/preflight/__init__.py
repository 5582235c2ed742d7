"""Checks with a remedy each, before a world starts; they decide on JSON that a probe of the node wrote."""
