"""`--help` of every program says of each flag what it is for."""

import argparse

import pytest

import bench.__main__
from controllers.runtime import settings
from dataplane.agent import main as agent
from dataplane.gateway import main as gateway
from dataplane.picker import main as picker
from engines.reference import main as engine

PARSERS = {
    "grfleet-agent": agent._parser(),
    "grfleet-gateway": gateway._parser(),
    "grfleet-operator": settings._parser({}),
    "grfleet-picker": picker._parser(),
    "grfleet-reference-engine": engine.parser(),
    "bench": bench.__main__.parser(),
}


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
def test_no_flag_is_without_a_word_of_what_it_is_for(parser: argparse.ArgumentParser) -> None:
    assert [action.dest for action in parser._actions if not action.help] == []
    assert parser.description
    assert parser.format_help()


def test_the_help_of_benchmarks_names_each_with_what_it_measures() -> None:
    shown = " ".join(PARSERS["bench"].format_help().split())
    for name in {**bench.__main__.BENCHMARKS, **bench.__main__.BY_HAND}:
        assert f" {name} " in shown
