"""``make dist``: build the packages of a release from the last commit, and use them as their users will.

The version is that of the tag on the commit, ``v1.2.3``; without a tag, the one of the source. The packages are
installed into empty environments, with pip and the package index, and run what ``make run`` runs.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
OUT = ROOT / "dist"
EXTRAS = ("", "cli", "server", "cli,local,server", "all")


def ran(*command, cwd=ROOT, env=None, codes=(0,)):
    """Run a command and return what it printed; end with its output if it fails."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | (env or {})
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, cwd=cwd, env=env, check=False
    )
    if done.returncode not in codes:
        sys.exit(f"{' '.join(str(part) for part in command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def tagged_version():
    """Return the version of the tag on the commit; empty if it has none."""
    tags = ran("git", "tag", "--points-at", "HEAD", "v*").split()
    if len(tags) > 1:
        sys.exit(f"the commit has several tags of versions: {', '.join(tags)}")
    return tags[0][1:] if tags else ""


def build(folder):
    """Build both packages from the files of the last commit, and nothing else."""
    ran("git", "archive", "--output", folder / "commit.tar", "HEAD")
    with tarfile.open(folder / "commit.tar") as archive:
        archive.extractall(folder / "source", filter="data")
    package = folder / "source/src/hookline/_base/package.py"
    version = tagged_version()
    if version:
        package.write_text(re.sub('__version__ = ".*"', f'__version__ = "{version}"', package.read_text()))
        changes = (ROOT / "CHANGELOG.md").read_text()
        if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changes, re.MULTILINE):
            sys.exit(f"CHANGELOG.md has no heading '## {version} (YYYY-MM-DD)'")
    else:
        print("The commit has no tag such as v1.2.3: these packages are not for publishing.")
    shutil.rmtree(OUT, ignore_errors=True)
    ran(BIN / "python", "-m", "build", "--no-isolation", "--outdir", OUT, folder / "source")


def contents():
    """Print what is in the packages, by folder."""
    (wheel,), (source,) = OUT.glob("*.whl"), OUT.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        print_contents(wheel, Counter("/".join(name.split("/")[:2]) for name in archive.namelist()))
    with tarfile.open(source) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
        print_contents(source, Counter(name.split("/")[0] for name in names))
    return wheel


def print_contents(package, counts):
    print(f"\n{package.name}, {package.stat().st_size / 1e6:.1f} MB")
    folders = {name: count for name, count in counts.items() if count > 1}
    print("  " + ", ".join(f"{name} {count}" for name, count in sorted(folders.items(), key=lambda item: -item[1])))
    print(f"  and {len(counts) - len(folders)} files beside them")


def install(wheel, extras, folder):
    """Install the wheel with extras into an empty environment, and run what works with them."""
    venv.create(folder, with_pip=True)
    python, program = folder / "bin/python", folder / "bin/hookline"
    what = f"{wheel}[{extras}]" if extras else wheel
    ran(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", what)
    ran(python, "-m", "pip", "check")
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    output = ran(python, "-c", block, cwd=folder)
    if "cli" in extras or extras == "all":
        output += ran(program, "--version", cwd=folder) + ran(program, "doctor", cwd=folder, codes=(0, 1, 2))
    if "local" in extras or extras == "all":
        output += tour(python, program, folder)
    if "server" in extras or extras == "all":
        output += ran(python, ROOT / "tests/release/server_scene.py", cwd=folder, env={"HOME": str(folder)})
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    packages = len(ran(python, "-m", "pip", "list", "--format=freeze").splitlines())
    print(f"  {f'[{extras}]' if extras else 'hookline':<20} {packages:>4} packages {size / 1e6:>6.0f} MB   works")
    return output


def tour(python, program, folder):
    """Do what ``make run`` does: a run of the embedded model, and what a stricter rule would have done."""
    shutil.copytree(ROOT / "examples/tour", folder / "tour")
    tape = folder / "run.tape"
    hooks = ("--trust", "--hooks", "visitor.py")
    told = ran(program, "run", *hooks, "--tape", tape, "Read a note: doctor.", cwd=folder / "tour")
    outcomes = ran(python, "outcomes.py", tape, cwd=folder / "tour")
    words = [line.split()[1] for line in outcomes.splitlines()]
    if not {"changed", "blocked", "asked", "finished", "stricter"} <= set(words):
        sys.exit(f"the outcomes of the tour are {outcomes}")
    return told + outcomes


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder)
        if "--only-build" in sys.argv:
            return
        ran(BIN / "twine", "check", "--strict", *OUT.glob("*"))
        wheel = contents()
        print("\nInstalled from the wheel alone:")
        for number, extras in enumerate(EXTRAS):
            install(wheel, extras, folder / f"env{number}")
        home = {"PIPX_HOME": str(folder / "pipx"), "PIPX_BIN_DIR": str(folder / "pipx-bin")}
        pipx_run = (BIN / "pipx", "run", "--spec")
        told = ran(*pipx_run, f"{wheel}[cli]", "hookline", "--version", env=home)
        lacking = ran(*pipx_run, wheel, "hookline", env=home, codes=(2,))  # the program is in an extra
        if "pipx install --force 'hookline[cli]'" not in lacking:
            sys.exit(f"pipx run without the extra cli says {lacking}")
        print(f"  pipx run: {told.splitlines()[0]}")
        sbom = ROOT / "build" / f"{wheel.name.split('-py3')[0]}.cdx.json"
        sbom.parent.mkdir(exist_ok=True)
        everything = folder / f"env{len(EXTRAS) - 1}/bin/python"
        ran(BIN / "cyclonedx-py", "environment", "--output-reproducible", "--output-file", sbom, everything)
        print(f"\nThe packages are in dist/, the bill of materials of [all] is {sbom.relative_to(ROOT)}.")


if __name__ == "__main__":
    main()
