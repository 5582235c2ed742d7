"""Run folder -> summary -> plots and one HTML page. Comes with its own issue."""
