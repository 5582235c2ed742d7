"""One source a file: `SOURCE`, what can be seen of a node, without a judgement."""
