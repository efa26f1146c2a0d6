"""What the documents show is what the commands print, and what the machine can run is what is judged."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend

from linattest.verify import adapters, registry
from linattest.verify.report.pages import info_markdown, reading_list

ROOT = Path(__file__).parents[2]


def test_readme_table_is_what_its_command_prints():
    text = (ROOT / "README.md").read_text()
    shown = text.split("<!-- table: linattest info --markdown -->\n")[1].split("\n<!-- /table -->")[0]
    assert shown == info_markdown()


def test_readme_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("operator", registry.OPERATORS, ids=lambda operator: operator.name)
def test_reading_list_leads_to_files(operator):
    assert all((ROOT / path).is_file() for _, path in reading_list(operator))


def test_every_attention_backend_of_this_cpu_is_a_variant():
    x = torch.rand(1, 4, 1, 8)
    runs: set[str] = set()
    for name, backend in SDPBackend.__members__.items():
        if backend in adapters.BACKENDS.values():
            key = next(k for k, b in adapters.BACKENDS.items() if b == backend)
            try:
                adapters.sdpa(x, x, x, backend=key)
            except RuntimeError:
                continue
            runs.add(key)
        else:
            assert name in {"ERROR", "OVERRIDEABLE"}, f"PyTorch has a backend {name} that the adapter does not know"
    variants = {v.options["backend"] for v in registry.operator("softmax").variants if "backend" in v.options}
    assert runs == variants
