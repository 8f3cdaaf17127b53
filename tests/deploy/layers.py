"""Prints the layers of an image in an OCI layout: size unpacked, size compressed, what made it.

    layers.py FOLDER
"""

import gzip
import json
import pathlib
import re
import sys


def blob(folder, digest):
    return folder / "blobs" / digest.replace(":", "/")


def read(folder, digest):
    return json.loads(blob(folder, digest).read_bytes())


def unpacked(path):
    size = 0
    with gzip.open(path) as layer:
        while piece := layer.read(1 << 20):
            size += len(piece)
    return size


def said(entry):
    """One line of a history entry's command, without the shell around it."""
    text = re.sub(r"^(/bin/sh -c )?(#\(nop\) *)?", "", entry.get("created_by", ""))
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def main():
    folder = pathlib.Path(sys.argv[1])
    index = json.loads((folder / "index.json").read_bytes())
    manifest = read(folder, index["manifests"][0]["digest"])
    history = [said(h) for h in read(folder, manifest["config"]["digest"]).get("history", [])
               if not h.get("empty_layer")]
    print(f"{'layer':>5} {'unpacked':>12} {'compressed':>12}  made by")
    total = [0, 0]
    for number, layer in enumerate(manifest["layers"]):
        sizes = [unpacked(blob(folder, layer["digest"])), layer["size"]]
        total = [a + b for a, b in zip(total, sizes)]
        maker = history[number] if number < len(history) else ""
        print(f"{number:>5} {sizes[0] / 1e6:>9.1f} MB {sizes[1] / 1e6:>9.1f} MB  {maker}")
    print(f"total {total[0] / 1e6:>9.1f} MB {total[1] / 1e6:>9.1f} MB")


if __name__ == "__main__":
    main()
