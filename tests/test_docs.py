"""The pages say what is true, and the examples run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateway import Gateway
from tests.support.mock import Mock

ROOT = Path(__file__).resolve().parents[1]


def test_the_written_pages_are_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/pages"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("example", "engine", "path"),
    [("openai_stream.py", "vllm", "/v1"), ("anthropic_stream.py", "anthropic", "")],
)
def test_an_example_runs(example: str, engine: str, path: str):
    options = ("--engine", engine, "--model", "llama", "--ttft", "5ms", "--itl", "1ms")
    with Mock(*options) as mock, Gateway(mock.url) as gateway:
        command = [sys.executable, str(ROOT / "examples" / example), gateway.url + path, "llama"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 3


def test_links_between_pages_lead_somewhere():
    import re

    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
