"""The documentation's links lead somewhere, and its complete examples run as they are printed."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("models/*.md"), *ROOT.glob("tutorials/*.md")]
)
BLOCK = re.compile(r"```python\n(.*?)```", re.S)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(page):
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing, f"{page.name} links to files that are not there: {missing}"


def _examples():
    """Blocks that import what they use; fragments (no model of their own) are left out."""
    for page in PAGES:
        for number, code in enumerate(BLOCK.findall(page.read_text())):
            if "import" in code and ("def model" in code or "from_callable" in code):
                yield pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.slow
@pytest.mark.parametrize("code", _examples())
def test_examples_run(code, tmp_path):
    needs = "pyro" if "ppl_samplers.pyro" in code else "numpyro"
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed here")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "log evidence" in done.stdout.lower()
