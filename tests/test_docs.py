"""The pages that are made of the code are as the code makes them, and say all that there is to say."""

from pathlib import Path

import pytest

from pipeline.contract.params import Params, Plug
from tests import docs


@pytest.mark.parametrize("page", docs.pages(), ids=lambda page: page.name)
def test_what_is_made_of_the_code_is_as_the_code_makes_it(page: Path) -> None:
    written = page.read_text() if page.exists() else ""
    assert written == docs.pages()[page] + "\n", f"{page.name} is not what the code makes; run: make docs"


def test_each_key_of_params_says_what_it_is() -> None:
    for name, section in Params.model_fields.items():
        fields = {name: section} if section.annotation is Plug else section.annotation.model_fields
        for key, field in fields.items():
            assert (field.description or "").endswith("."), f"{name}.{key} has no text below it"
