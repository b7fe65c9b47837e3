#!/usr/bin/env python3
"""The portable library needs nothing that only Linux has, neither functions nor words of its sources.

needs_posix_only.py BUILD: the folder where libper.a was built, with compile_commands.json
"""

import json
import pathlib
import re
import subprocess
import sys

# The library for Linux uses several of these. syscall() is a word, since std::atomic::wait() of libstdc++ calls it.
FUNCTIONS = """copy_file_range epoll_create1 eventfd fallocate getrandom inotify_init1 madvise memfd_create mincore
    mremap pidfd_open prctl preadv2 process_vm_readv pwritev2 readahead renameat2 sched_setaffinity sendfile splice
    statx sync_file_range timerfd_create vmsplice"""
WORDS = r"<linux/|<sys/(prctl|random|syscall)\.h>|\bsyscall\(|/proc/|F_OFD_|\bMADV_|_NOREPLACE|MREMAP_|O_PATH|O_TMPFILE"


def with_headers(file: pathlib.Path, source: pathlib.Path, known: set[pathlib.Path]) -> set[pathlib.Path]:
    known.add(file)
    for name in re.findall(r'#include "(.*)"', file.read_text()):
        header = source / name
        if header.exists() and header not in known:
            with_headers(header, source, known)
    return known


def main(build: pathlib.Path) -> list[str]:
    symbols = subprocess.run(["nm", "-u", build / "libper.a"], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"^\s+U (\w+?)(?:64)?(?:@.*)?$", symbols, re.MULTILINE))
    assert "pread" in needed, "nm lists no functions"
    problems = [f"libper.a needs {name}()" for name in sorted(needed.intersection(FUNCTIONS.split()))]
    source = pathlib.Path(__file__).resolve().parents[2] / "src"
    files: set[pathlib.Path] = set()
    for command in json.loads((build / "compile_commands.json").read_text()):
        with_headers(pathlib.Path(command["file"]), source, files)
    assert source / "system" / "file_posix.cpp" in files
    for file in sorted(files):
        found = re.search(WORDS, re.sub(r"//.*", "", file.read_text()))
        problems += [f"{file} has {found[0]}"] if found else []
    return problems


if __name__ == "__main__":
    wrong = main(pathlib.Path(sys.argv[1]))
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)
