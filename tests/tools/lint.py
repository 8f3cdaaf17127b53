#!/usr/bin/env python3
"""What a compiler does not check: who may include whom, which calls are banned, and what must never
stand in a source file. Speaks TAP, one test a rule. Needs only Python's standard library."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ROOMS = ["server", "proto", "engine", "kernels"]

# Headers of ours a room may include, beside its own and kernels/base.h (patterns).
ARROWS = {
    "server": [r"proto/.*\.h", r"engine/engine\.h", r"engine/request\.h"],
    "proto": [r"engine/request\.h"],
    "engine": [r"kernels/kernels\.h"],
    "kernels": [],
}

# Headers of other libraries, and the only files that may include them (patterns).
OUTSIDE = {
    r"uv\.h": r"server/.*",
    r"microhttpd\.h": r"server/.*",
    r"gnutls/.*": r"server/.*",
    r"jansson\.h": r"proto/.*|engine/(load/loader|tokenizer/tokenizer_json)\.[ch]",
    r"pcre2\.h": r"engine/tokenizer/\w+\.[ch]",
    r"utf8proc\.h": r"engine/(tokenizer|chat)/\w+\.[ch]",
    r"(imm|x86|emm)intrin\.h|cpuid\.h": r"kernels/cpu/.*",
    r"cuda.*\.h|cublas.*\.h": r"kernels/cuda/.*",
    r"gpusim\.h": r"kernels/cuda/gpu\.h",
    r"tiles\.h": r"kernels/cpu/amx\.h",
    r"cmocka\.h": r"tests/.*",
    r"algorithm|deque|functional|map|memory|mutex|type_traits|vector": r"tests/gpu(sim)?/.*",
}

# The C library, POSIX and Linux.
SYSTEM = set("""
    arpa/inet.h assert.h ctype.h dirent.h dlfcn.h errno.h fcntl.h fenv.h float.h getopt.h
    inttypes.h langinfo.h libgen.h limits.h linux/sockios.h locale.h math.h netdb.h
    netinet/in.h netinet/tcp.h poll.h pthread.h sched.h semaphore.h setjmp.h signal.h stdalign.h
    stdarg.h stdatomic.h stdbool.h stddef.h stdint.h stdio.h stdlib.h stdnoreturn.h string.h
    strings.h sys/epoll.h sys/eventfd.h sys/ioctl.h sys/mman.h sys/param.h sys/random.h
    sys/resource.h sys/socket.h sys/stat.h sys/syscall.h sys/time.h sys/types.h sys/uio.h sys/un.h
    sys/wait.h syslog.h termios.h time.h unistd.h wchar.h execinfo.h malloc.h linux/futex.h linux/mempolicy.h
    sys/auxv.h sys/prctl.h sys/sysinfo.h sys/vfs.h sys/statvfs.h ucontext.h
""".split())

# Banned calls: pattern, why, files that may.
BANNED = [
    (r"\b(strcpy|strcat|sprintf|vsprintf|gets|strtok)\s*\(", "has no bound", r"tests/.*"),
    (r"\b(atoi|atol|atof)\s*\(", "cannot report an error; parse with a check", None),
    (r"\b(alloca|__builtin_alloca)\s*\(", "an unbounded stack", None),
    (r"(?<!_)\bexit\s*\(", "only main.c exits", r"server/main\.c|tests/.*"),
    (r"\b(system|popen)\s*\(", "runs a shell", r"tests/.*"),
    (r"\bfprintf\s*\(\s*stderr|\bperror\s*\(|\bvfprintf\s*\(\s*stderr",
     "only log.c and the command line write to stderr",
     r"server/(main|log|options|cmd\w*|cli\w*)\.c|kernels/base\.c|engine/load/model\.c|tests/.*"),
]

# Text that must not be in the repository's sources.
TEXTS = [
    (r"\b(TODO|FIXME|XXX|HACK)\b", "open ends belong in an issue"),
    (r"#\s*if\s+0\b", "code that never runs"),
    (r"(^|[\s\"'=(])/work/|\.\./shared|/farm/", "a path of somebody's machine"),
    (r"-march=native|-ffast-math", "instruction sets are chosen at start; sums keep their order"),
    (r"[ \t]+$", "space at the end of a line"),
]

# In .cu files: pattern, why.
KERNEL_RULES = [
    (r"<<<", "launches go through GPU_LAUNCH"),
    (r"\basm\b", "PTX belongs in gpu.h, with its host body beside it"),
    (r"\bextern\s+__shared__", "dynamic shared memory comes from GPU_DYN_SHARED"),
    (r"^\s*#\s*pragma", "GPU_UNROLL instead of a pragma"),
    (r"\bstd::", "C with templates, no library"),
    (r"^\s*#\s*include\s*<(cuda|cublas|gpusim)", "a kernel includes gpu.h only"),
    (r"^(?!.*\bstatic\b).*\b__global__\b", "kernels are static: their shared arrays must not be merged"),
    (r"^[ \t]+static\b(?!_assert| const\b)", "the simulator takes static variables of functions for shared memory"),
]

LONGEST_FILE = 900

SUFFIXES = {".c", ".h", ".cpp", ".cu"}


def sources():
    for folder in ROOMS + ["tests"]:
        for path in sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES):
            yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8", "replace")


def texts():
    yield from sources()
    for pattern in ["Makefile", "*.md", "tests/**/*.py", "tests/**/*.sh", "models/*.sh", "docker/*", "tests/deploy/*", ".ci/*"]:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file() and "golden" not in path.parts:
                yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8", "replace")


def code_only(text):
    """The text with comments and literals blanked, line structure kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def rule_arrows():
    """rooms include only what their row of the table allows"""
    for path, text in sources():
        room = path.split("/")[0]
        for match in re.finditer(r'^\s*#\s*include\s*"([^"]+)"', text, re.M):
            target, where = match[1], f"{path}:{line_of(text, match.start())}"
            if not (ROOT / target).is_file():
                yield f"{where}: include \"{target}\" is no path from the repository's root"
            elif target.endswith("_internal.h"):
                module = target.split("/")[-1].removesuffix("_internal.h")
                if not (path.startswith(target.rsplit("/", 1)[0] + "/") or
                        re.match(rf"tests/(unit|prop|fuzz)/(\w+_{module}\w*\.c|\w+\.h)", path)):
                    yield f"{where}: {target} belongs to its module and that module's own test"
            elif room == "tests" or target == "kernels/base.h" or target.startswith(room + "/"):
                continue
            elif not any(re.fullmatch(p, target) for p in ARROWS[room]):
                yield f"{where}: {room}/ may not include {target}"


def rule_outside():
    """other libraries are included only where the table allows"""
    for path, text in sources():
        for match in re.finditer(r"^\s*#\s*include\s*<([^>]+)>", text, re.M):
            target, where = match[1], f"{path}:{line_of(text, match.start())}"
            row = next((files for header, files in OUTSIDE.items() if re.fullmatch(header, target)), None)
            if row is None and target not in SYSTEM:
                yield f"{where}: <{target}> is in no row of the table"
            elif row is not None and not path.startswith("tests/") and not re.fullmatch(row, path):
                yield f"{where}: <{target}> is not for this file"


def rule_no_c_includes():
    """no file includes a .c file"""
    for path, text in sources():
        for match in re.finditer(r'^\s*#\s*include\s*[<"][^">]+\.c[">]', text, re.M):
            yield f"{path}:{line_of(text, match.start())}: includes a .c file"


def rule_guards():
    """every header of ours has an include guard"""
    for path, text in sources():
        if path.endswith(".h") and not re.search(r"#ifndef (GERYON_\w+_H)\n#define \1\n", text):
            yield f"{path}: no guard of the form GERYON_..._H"


def rule_banned_calls():
    """banned calls are not made"""
    for path, text in sources():
        code = code_only(text)
        for pattern, why, may in BANNED:
            if may and re.fullmatch(may, path):
                continue
            for match in re.finditer(pattern, code):
                yield f"{path}:{line_of(code, match.start())}: {match[0].strip()}: {why}"


def rule_texts():
    """no open ends, private paths or native flags"""
    for path, text in texts():
        if path == "tests/tools/lint.py":
            continue
        for pattern, why in TEXTS:
            for match in re.finditer(pattern, text, re.M):
                yield f"{path}:{line_of(text, match.start())}: {match[0].strip() or 'blanks'}: {why}"


def rule_kernels():
    """kernels keep to what nvcc and the simulator both take"""
    for path, text in sources():
        if not path.endswith(".cu"):
            continue
        code = code_only(text)
        for pattern, why in KERNEL_RULES:
            for match in re.finditer(pattern, code, re.M):
                yield f"{path}:{line_of(code, match.start())}: {match[0].strip()}: {why}"


def rule_file_length():
    """no file is longer than one thing should be"""
    for path, text in texts():
        if not path.endswith(".md") and text.count("\n") > LONGEST_FILE:
            yield f"{path}: {text.count(chr(10))} lines, at most {LONGEST_FILE}"


def rule_self_test():
    """lint itself sees what it must"""
    code = code_only('strcpy(a, b); /* gets(x) */ "atoi(1)" // exit(1)\n')
    if "strcpy" not in code or "gets" in code or "atoi" in code or "exit" in code:
        yield "code_only does not blank comments and literals"
    for line in ["strcpy (a, b)", "x = atoi(s)", "exit(1)", 'fprintf(stderr, "")', "alloca(n)"]:
        if not any(re.search(pattern, line) for pattern, _, _ in BANNED):
            yield f"{line} is not seen"
    for line in ["pthread_exit(0)", "_exit(1)", "my_atoi(s)", "snprintf(a, 1, b)"]:
        if any(re.search(pattern, line) for pattern, _, _ in BANNED):
            yield f"{line} is seen though it is fine"
    for line in ["k<<<1, 2>>>(x)", "asm volatile(", "extern __shared__ float s[]", "#pragma unroll", "std::min(a, b)",
                 "template <int N> __global__ void k()", "    static int n;", "#include <cuda_runtime.h>"]:
        if not any(re.search(pattern, line) for pattern, _ in KERNEL_RULES):
            yield f"{line} is not seen in a kernel"
    for line in ["static __global__ void k(int i) {", "static int table[4];", "    static const int ROWS = 4;", "    __shared__ float s[32];",
                 "template <int N> static __global__ void k() {"]:
        if any(re.search(pattern, line) for pattern, _ in KERNEL_RULES):
            yield f"{line} is seen though it is fine in a kernel"


def main():
    rules = [rule_arrows, rule_outside, rule_no_c_includes, rule_guards, rule_banned_calls,
             rule_texts, rule_kernels, rule_file_length, rule_self_test]
    print(f"1..{len(rules)}")
    failed = 0
    for number, rule in enumerate(rules, 1):
        faults = list(rule())
        failed += bool(faults)
        print(f"{'not ok' if faults else 'ok'} {number} - {rule.__doc__}")
        for fault in faults:
            print(f"# {fault}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
