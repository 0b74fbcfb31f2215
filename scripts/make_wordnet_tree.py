"""Writes the part of WordNet 3.0 above the 1000 ILSVRC-2012 classes to ``oscbench/protocols/data/wordnet_tree.csv``.

    python scripts/make_wordnet_tree.py --classes imagenet_synsets.txt     (the 1000 wnids, one to a line)
    python scripts/make_wordnet_tree.py                                    (the classes the shipped file has)

Needs Debian's packages ``wordnet-base`` and ``wordnet-sense-index``. A line per synset on a hypernym path of a class:
its wnid, its hypernyms in database order, 1 for a class of ILSVRC-2012, its lemmas.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oscbench.artifacts import write_text

WORDNET = Path("/usr/share/wordnet")
TREE = Path(__file__).parents[1] / "oscbench" / "protocols" / "data" / "wordnet_tree.csv"
HEADER = ("wnid", "parents", "ilsvrc", "lemmas")


@contextlib.contextmanager
def open_wordnet(folder: Path = WORDNET) -> Iterator[Any]:
    """Yields NLTK's reader of a WordNet database folder.

    NLTK reads only below its own data path and wants ``lexnames``, which Debian leaves out, so it gets a copy. The
    lexicographer file names are of no use here and are numbered.
    """
    import nltk.data

    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "corpora" / "wordnet"
        copy.mkdir(parents=True)
        for file in folder.iterdir():
            if file.is_file():
                shutil.copy(file, copy)
        (copy / "lexnames").write_text("".join(f"{number:02}\tlexname.{number}\t1\n" for number in range(45)))
        nltk.data.path.insert(0, temporary)
        try:
            from nltk.corpus import CorpusReader, LazyCorpusLoader
            from nltk.corpus.reader.wordnet import WordNetCorpusReader

            yield WordNetCorpusReader(nltk.data.find("corpora/wordnet"), LazyCorpusLoader("omw", CorpusReader, ""))
        finally:
            nltk.data.path.remove(temporary)


def wnid_of(synset: Any) -> str:
    """``n`` and the eight-digit offset of a noun synset."""
    return f"n{synset.offset():08}"


def database_order(folder: Path) -> dict[str, list[str]]:
    """Hypernyms of every noun synset in the order of the database, which NLTK keeps in an unordered set."""
    order = {}
    with (folder / "data.noun").open(encoding="utf-8") as file:
        for line in file:
            if line.startswith(" "):  # licence
                continue
            fields = line.split(" | ")[0].split()
            n_words = int(fields[3], 16)
            pointers = fields[5 + 2 * n_words :]
            order[f"n{fields[0]}"] = [f"n{pointers[i + 1]}" for i in range(0, len(pointers), 4) if pointers[i] == "@"]
    return order


def tree_text(classes: list[str], wordnet: Any, order: dict[str, list[str]]) -> str:
    """The tree file's content for the given ILSVRC wnids."""
    rows: dict[str, tuple[str, str, int, str]] = {}
    waiting = [wordnet.synset_from_pos_and_offset("n", int(wnid[1:])) for wnid in classes]
    while waiting:
        synset = waiting.pop()
        wnid = wnid_of(synset)
        if wnid in rows:
            continue
        parents = synset.hypernyms()
        if {wnid_of(parent) for parent in parents} != set(order[wnid]):
            raise SystemExit(f"{wnid}: NLTK and data.noun disagree on its hypernyms")
        lemmas = "|".join(name.replace("_", " ") for name in synset.lemma_names())
        rows[wnid] = (wnid, " ".join(order[wnid]), int(wnid in classes), lemmas)
        waiting.extend(parents)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(rows[wnid] for wnid in sorted(rows))
    return text.getvalue()


def shipped_classes() -> list[str]:
    """The ILSVRC wnids of the tree file as it stands."""
    with TREE.open(encoding="utf-8") as file:
        return [row["wnid"] for row in csv.DictReader(file) if row["ilsvrc"] == "1"]


def main() -> None:
    """Writes the tree file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=Path, help="the 1000 ILSVRC-2012 wnids, one to a line")
    parser.add_argument("--wordnet", type=Path, default=WORDNET, help="folder of the WordNet 3.0 database")
    arguments = parser.parse_args()
    classes = arguments.classes.read_text().split() if arguments.classes else shipped_classes()
    if len(set(classes)) != 1000:
        raise SystemExit(f"expected 1000 classes, got {len(set(classes))}")
    with open_wordnet(arguments.wordnet) as wordnet:
        text = tree_text(classes, wordnet, database_order(arguments.wordnet))
    write_text(TREE, text)
    print(f"{TREE}: {text.count(chr(10)) - 1} synsets")


if __name__ == "__main__":
    main()
