from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def folder_of_datasets(tmp_path, monkeypatch):
    """Datasets are written to a folder of the test's own."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
