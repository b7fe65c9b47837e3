from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def folder_of_datasets(tmp_path, monkeypatch):
    """Each test writes datasets to a temporary folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
