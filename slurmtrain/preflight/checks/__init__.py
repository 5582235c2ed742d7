"""One check a file: `CHECK`, a pure judgement of a source's facts."""
