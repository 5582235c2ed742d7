"""Predictions (memory, time, communication, bubble, goodput, cost) and the search for a layout. Comes with its own issue."""
