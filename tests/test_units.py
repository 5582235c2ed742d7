"""Durations as sbatch reads them (its manual page, --time), sizes, short numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.units import format_count, format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90 * 60),  # minutes
        (90, 90 * 60),
        ("2:30", 150),  # minutes:seconds
        ("1:00:00", 3600),  # hours:minutes:seconds
        ("1-12", 36 * 3600),  # days-hours
        ("1-12:30", 36 * 3600 + 1800),  # days-hours:minutes
        ("2-03:04:05", 2 * 86400 + 3 * 3600 + 4 * 60 + 5),
        ("45s", 45),
        ("30m", 1800),
        ("8h", 28800),
        ("2d", 172800),
        (" 10 ", 600),
        ("0", 0),
    ],
)
def test_the_forms_of_a_duration(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1:2:3:4", "-5", "1-", "x", "1.5h", "1:-2", "5 weeks", "1-2-3"])
def test_what_is_no_duration_says_which_forms_are(text):
    with pytest.raises(ValueError, match="is not a time: write minutes"):
        parse_duration(text)


@given(st.integers(0, 400 * 86400))
def test_a_duration_survives_its_text(seconds):
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(("seconds", "text"), [(59.9, "00:00:59"), (3600, "01:00:00"), (86400, "1-00:00:00"), (-3, "00:00:00")])
def test_durations_as_slurm_prints_them(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("512", 512),
        (512, 512),
        ("80GB", 80 * 10**9),
        ("16MiB", 16 * 2**20),
        ("2T", 2 * 10**12),
        ("1.5 kib", 1536),
        ("0.1GB", 10**8),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_sizes_are_exact(text, count):
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "GB", "1XB", "-1", "1 2", "1e9"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (4 << 30, "4.0 GiB"), (5 << 50, "5120.0 TiB")]
)
def test_sizes_in_binary_units(count, text):
    assert format_size(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"), (7, "7"), (950, "950"), (999.4, "999"), (999.9, "1.00k"), (1000, "1.00k"), (9999, "10.0k"), (12345, "12.3k"),
        (100000, "100k"), (999_400, "999k"), (999_600, "1.00M"), (7.1e9, "7.10B"), (4.05e11, "405B"), (1.5e13, "15.0T"), (2e15, "2000T"),
    ],
)  # fmt: skip
def test_counts_have_three_figures(count, text):
    assert format_count(count) == text
