"""Fails if kernels are compiled for processor features that the library does not check before it runs them.

    checked_features.py COMPILER SOURCE ISA FLAG...

SOURCE defines the checking functions, has_v3() and has_v4(). The features of the flags are read from the predefined
macros of the compiler.
"""

import pathlib
import re
import subprocess
import sys

# Features implied by the first one: no processor has it without them, and no system saves its registers without theirs.
IMPLIED = {
    "avx2": {"avx", "sse4_2", "sse4_1", "ssse3", "sse3", "crc32", "xsave"},
    "avx512f": {"f16c"},
}

# Macros defined by flags that are not features.
OTHERS = re.compile(r"__BIGGEST_ALIGNMENT__|__FP_FAST_FMA\w*|__EVEX(256|512)__")


def macros(compiler, flags):
    command = [compiler, *flags, "-x", "c++", "-dM", "-E", "/dev/null"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"^#define (\w+)", output, re.MULTILINE))


def compiled_features(compiler, flags):
    added = macros(compiler, flags) - macros(compiler, [])
    return {name.strip("_").lower() for name in added if not OTHERS.fullmatch(name)}


def checked_features(source, isa):
    body = re.search(rf"^bool has_{isa}\(\) {{\n(.*?)^}}", source, re.MULTILINE | re.DOTALL)[1]
    found = set(re.findall(r'__builtin_cpu_supports\("(\w+)"\)', body))
    for other in re.findall(r"\bhas_(\w+)\(\)", body):
        found |= checked_features(source, other)
    return found


def problems(compiler, source, isa, flags):
    compiled = compiled_features(compiler, flags)
    checked = checked_features(source, isa)
    implied = set().union(*(IMPLIED.get(feature, set()) for feature in checked))
    return [
        *(f"compiled for {feature}, which is not checked" for feature in sorted(compiled - checked - implied)),
        *(f"{feature} is checked, and not compiled for" for feature in sorted(checked - compiled)),
    ]


def main():
    compiler, path, isa, *flags = sys.argv[1:]
    source = pathlib.Path(path).read_text()
    for flag, name in {"-mlzcnt": "lzcnt", "-march=x86-64-v4": "movbe"}.items():
        if not any(name in problem for problem in problems(compiler, source, isa, [*flags, flag])):
            sys.exit(f"{name}, which {flag} adds, was not found out")
    if not problems(compiler, source, isa, [flag for flag in flags if flag != "-mbmi2"]):
        sys.exit("that -mbmi2 is left out was not found out")
    found = problems(compiler, source, isa, flags)
    if found:
        sys.exit(f"kernels of {isa}, compiled by {compiler}:\n" + "\n".join(found))


if __name__ == "__main__":
    main()
