"""Image distance grows with WordNet distance, and the protocols keep their character."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from oscbench.data.looks import SHOWN, draw_images, traits_of
from oscbench.protocols.base import load_protocol
from oscbench.protocols.wordnet import load_tree

SIZE, PER_CLASS = 48, 12


def describe(images):
    """(N, D) a fixed descriptor: 6 x 6 mean colours, and 3 x 3 cells of gradient energy in 8 directions."""
    x = images.astype(np.float32) / 255
    n = len(x)
    colours = x.reshape(n, 6, 8, 6, 8, 3).mean(axis=(2, 4)).reshape(n, -1)
    dy, dx = np.gradient(x.mean(axis=3), axis=(1, 2))
    energy, direction = np.hypot(dx, dy), (np.arctan2(dy, dx) % np.pi / np.pi * 8).astype(int) % 8
    cells = [(energy * (direction == k)).reshape(n, 3, 16, 3, 16).mean(axis=(2, 4)) for k in range(8)]
    return np.concatenate([colours, 20 * np.stack(cells, 1).reshape(n, -1)], axis=1)


@pytest.fixture(scope="module")
def descriptors():
    """Mean descriptor of every class of protocols 1 and 3."""
    wnids = sorted({wnid for number in "13" for wnid in load_protocol(number).classes})
    tree = load_tree()
    return {w: describe(draw_images(tree.path(w), 0, "val", range(PER_CLASS), SIZE)).mean(axis=0) for w in wnids}


def distance_to_knowns(descriptors, number, role):
    """Mean over a role's classes of the distance to the nearest known class."""
    protocol = load_protocol(number)
    known = np.stack([descriptors[c.wnid] for c in protocol.known])
    return np.mean([np.linalg.norm(known - descriptors[c.wnid], axis=1).min() for c in protocol.role(role)])


def test_image_distance_grows_with_wordnet_distance(descriptors):
    tree, wnids = load_tree(), sorted(descriptors)
    first, second = np.triu_indices(len(wnids), 1)
    chosen = np.random.default_rng(0).choice(len(first), 20_000, replace=False)
    pairs = [(wnids[first[i]], wnids[second[i]]) for i in chosen]
    images = [np.linalg.norm(descriptors[a] - descriptors[b]) for a, b in pairs]
    assert spearmanr(images, [tree.distance(a, b) for a, b in pairs]).statistic > 0.5


def test_unknowns_of_p1_are_further_from_its_knowns_than_those_of_p3(descriptors):
    assert distance_to_knowns(descriptors, "1", "unknown") > 1.2 * distance_to_knowns(descriptors, "3", "unknown")


def test_negatives_of_p1_are_nearer_to_its_knowns_than_its_unknowns(descriptors):
    assert distance_to_knowns(descriptors, "1", "unknown") > 1.2 * distance_to_knowns(descriptors, "1", "negative")


def test_known_classes_of_p1_are_closer_together_than_those_of_p3(descriptors):
    def spread(number):
        known = np.stack([descriptors[c.wnid] for c in load_protocol(number).known])
        return np.linalg.norm(known - known.mean(axis=0), axis=1).mean()

    assert spread("1") < 0.8 * spread("3")


def test_a_class_inherits_from_its_path_and_from_nothing_else():
    tree = load_tree()
    path = tree.path("n02085620")
    traits = np.concatenate(list(traits_of(path, 0).values()))
    assert np.abs(traits).max() <= 1
    sister = np.concatenate(list(traits_of(tree.path("n02085782"), 0).values()))
    stranger = np.concatenate(list(traits_of(tree.path("n02666196"), 0).values()))
    assert np.linalg.norm(traits - sister) < np.linalg.norm(traits - stranger)
    assert np.array_equal(traits, np.concatenate(list(traits_of(list(path), 0).values())))
    assert not np.array_equal(traits, np.concatenate(list(traits_of(path, 1).values())))


def test_near_classes_have_the_same_kinds_of_parts_and_far_ones_others():
    protocol, tree = load_protocol("1"), load_tree()

    def presence(role):
        return np.stack([traits_of(tree.path(c.wnid), 0)["part_presence"] for c in protocol.role(role)])

    known = presence("known")
    assert np.allclose(known.sum(axis=1), SHOWN, atol=1)  # the last one may fade into the next
    assert known.min() >= 0
    shared = {role: np.mean(presence(role) @ known.T) / SHOWN for role in ("known", "negative", "unknown")}
    assert shared["known"] > shared["negative"] > 0.8 > 0.6 > shared["unknown"]


def test_an_image_depends_on_its_own_index_alone():
    path = load_tree().path("n02085620")
    together = draw_images(path, 0, "train", [3, 1, 2], 32)
    assert np.array_equal(together[1], draw_images(path, 0, "train", [1], 32)[0])
    assert not np.array_equal(together[1], draw_images(path, 0, "val", [1], 32)[0])
    assert together.shape == (3, 32, 32, 3)
    assert together.dtype == np.uint8
