"""Where the shipped rules and templates are looked for: in the wheel, in the checkout, nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratadvisor import resources
from stratadvisor.errors import StratadvisorError

PACKAGE = Path(resources.__file__).parent


def test_a_checkout_has_them_at_its_top() -> None:
    for kind in ("rules", "templates"):
        found = resources.bundled(kind)  # type: ignore[arg-type]
        assert Path(str(found)) in (PACKAGE.parent / kind, PACKAGE / "_bundled" / kind)
        assert any(found.iterdir())


def test_the_wheels_own_go_before_a_folder_beside_it_and_a_damaged_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "stratadvisor"
    package.mkdir()
    monkeypatch.setattr(resources, "files", lambda name: tmp_path / name)
    for folder in ("rules", "templates"):  # a site-packages folder may hold anything beside the package
        (tmp_path / folder).mkdir()
    with pytest.raises(StratadvisorError, match="the shipped rules are neither in") as caught:
        resources.bundled("rules")
    assert caught.value.hint == "reinstall stratadvisor: the installation is incomplete"
    (tmp_path / "pyproject.toml").write_text("")
    assert resources.bundled("rules") == tmp_path / "rules"
    inside = package / "_bundled" / "rules"
    inside.mkdir(parents=True)
    assert resources.bundled("rules") == inside
    assert resources.bundled("templates") == tmp_path / "templates"
