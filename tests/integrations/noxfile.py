"""Tests of per.integrations. Each framework has a session and an environment, .venvs/NAME.

    .venv/bin/nox --noxfile tests/integrations/noxfile.py [--session NAME ...] [-- arguments of pytest]

The frameworks pin versions that contradict each other. An environment contains the packages of NAME/requirements.txt;
all others, such as the package under test, are imported from .venv. It is created once, and updated when its
requirements or those of .venv change. NAME/requirements-without-dependencies.txt lists packages whose dependencies
contradict .venv: pip installs them without dependencies. A framework that cannot be installed is skipped, with pip's
reason.
"""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

import nox

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parents[1]
FRAMEWORKS = sorted(path.parent.name for path in TESTS.glob("*/requirements.txt"))

nox.options.envdir = str(ROOT / ".venvs")
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True


def install(session: nox.Session, requirements: Path) -> None:
    site_packages = Path(
        session.run("python", "-c", "import site; print(site.getsitepackages()[0])", silent=True).strip()
    )
    below = site_packages / "libper.pth"
    stamp = site_packages / "libper-requirements"
    alone = requirements.with_name("requirements-without-dependencies.txt")
    files = [ROOT / "scripts" / "requirements.txt", requirements, *([alone] if alone.exists() else [])]
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    below.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    session.install("--quiet", "--requirement", str(requirements))
    if alone.exists():
        session.install("--quiet", "--no-deps", "--requirement", str(alone))
    stamp.write_text(wanted)


def add(framework: str) -> None:
    @nox.session(name=framework, venv_backend="venv")
    def test(session: nox.Session) -> None:
        try:
            install(session, TESTS / framework / "requirements.txt")
        except nox.command.CommandFailed:
            session.skip(f"pip cannot install tests/integrations/{framework}/requirements.txt")
        session.chdir(str(ROOT))
        pytest = ("python", "-m", "pytest", "-q", "-rs", f"--rootdir={TESTS}", f"--confcutdir={TESTS}")
        session.run(*pytest, str(TESTS / framework), *session.posargs)


for name in FRAMEWORKS:
    add(name)
