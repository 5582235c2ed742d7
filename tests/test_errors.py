"""Errors: one line each, exit codes by kind."""

from __future__ import annotations

import copy
import pickle

import pytest

from slurmtrain import errors
from slurmtrain.errors import ConfigError, SlurmtrainError, UserError, one_line

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, SlurmtrainError)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_users_mistake_ends_with_2_and_every_other_with_1(kind):
    assert kind.exit_code == (2 if issubclass(kind, UserError) else 1)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_the_docstring_of_the_module_names_every_class(kind):
    assert kind.__name__ in errors.__doc__


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ({"where": "job.toml", "key": "parallel.tp", "value": 0}, "job.toml: parallel.tp = 0: too small"),
        ({"where": "job.toml", "key": "parallel.tp"}, "job.toml: parallel.tp: too small"),
        ({"key": "--set", "value": "x"}, "--set = 'x': too small"),
        ({"where": "job.toml"}, "job.toml: too small"),
        ({"where": "job.toml", "value": 3}, "job.toml: too small"),
        ({}, "too small"),
    ],
)
def test_a_config_error_says_where_and_which_key(parts, line):
    assert str(ConfigError("too small", **parts)) == line


@pytest.mark.parametrize("copied", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy], ids=["pickle", "copy"])
def test_a_config_error_keeps_its_line_and_fields_on_its_way_through_submitit(copied):
    error = copied(ConfigError("too small", where="job.toml", key="a.b", value=3))
    assert (str(error), error.key, error.value) == ("job.toml: a.b = 3: too small", "a.b", 3)


@pytest.mark.parametrize(
    ("text", "limit", "line"),
    [
        ("a\n  b\tc ", 300, "a b c"),
        ("", 300, ""),
        ("x" * 10, 10, "x" * 10),
        ("x" * 11, 10, "x" * 7 + "..."),
        ("\x1b[2Jä\x00\x07b", 300, "\ufffd[2Jä\ufffd\ufffdb"),
    ],
)
def test_one_line(text, limit, line):
    assert one_line(text, limit) == line


def test_the_exit_codes_of_the_contract():
    codes = (errors.EXIT_OK, errors.EXIT_FAULT, errors.EXIT_USER, errors.EXIT_TEMPFAIL, errors.EXIT_CONFIG, errors.EXIT_NO_RESTART)
    assert codes == (0, 1, 2, 75, 78, 93)
