"""Looks of the embedded data: what an image of a class looks like follows from the class's WordNet path alone.

A look is a vector of traits, the end of a random walk down the WordNet path: every synset adds a step drawn from its
own wnid. Classes that share most of their path therefore share most of their look. The traits of the setting (ground,
outline, frame, coat) change most near the root and hardly among sister classes. Those of the detail (colours and shapes
of the subject's parts) change at every level, deep ones most, so that sister classes can be told apart. Which kinds of
parts a subject has at all changes near the root above all: near classes have the same parts in other colours, far ones
have other parts.

It is made so in order that trained networks behave here as the papers' do on ImageNet, and a test on trained networks
holds it. Without negatives in training, a near class is harder to reject than a far one: it has the parts that the
network has learned to read, the far class lacks them. With negatives in training, those are rejected best, and classes
unlike them gain less. The drawing knows neither protocol nor role.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

GENERATOR = 6
"""Version of the drawing; part of the data's fingerprint, so that a change of it makes other data."""

SHARED_LEVELS = 2
"""Entity and physical entity, which everything that can be pictured is: no steps, the walk starts below them."""


@dataclass(frozen=True)
class Inheritance:
    """Steps of the walk in radians: the size of the first one and the ratio of each to the one above it."""

    step: float
    decay: float


SETTING = Inheritance(1.2, 0.78)
DETAIL = Inheritance(0.13, 1.1)
KINDS_RANK = Inheritance(1.0, 0.85)

KINDS = 12
"""Kinds of parts that there are; every other one lies on the body, the others around it."""
SHOWN = 5
"""Kinds of parts that each class has: those with the highest ranks."""
SHARPNESS = 2.0
"""How soon a part fades in as its rank passes those of others: sister classes have it more or less."""
FAINTEST = 0.02
"""Presence up to which a part is left out."""
LOBES = (0, 2, 3, 4, 5, 3)
"""Lobes of the outlines of the parts on the body, and of those around it; every other one is hollow."""

TRAITS: dict[str, tuple[int, Inheritance]] = {
    "ground_colour": (6, SETTING),  # upper and lower colour
    "ground_wave": (3, SETTING),  # frequency, direction, contrast
    "body_outline": (8, SETTING),  # four harmonics, cosine and sine each
    "body_frame": (3, SETTING),  # size, elongation, direction
    "body_colour": (3, SETTING),
    "mark_colour": (3, SETTING),
    "mark_wave": (4, SETTING),  # frequency, direction, contrast, stripes to spots
    "part_colour": (3 * KINDS, DETAIL),  # of each kind
    "part_shape": (3 * KINDS, DETAIL),  # bearing, distance, size of each kind
}


@dataclass(frozen=True)
class Variation:
    """How much the images of one class differ among themselves (standard deviations; lengths in half image sides)."""

    shift: float = 0.1
    turn: float = 0.22
    scale: float = 0.09
    tint: float = 0.12
    ground_tint: float = 0.25
    light: float = 0.16
    parts: float = 0.1
    noise: float = 0.04


VARIATION = Variation()
EVEN_LIGHT = np.float32(0.5)
"""Share of a colour trait's brightness that is taken out."""


def rng_of(*key: str | int) -> np.random.Generator:
    """A generator that depends on the key alone, in any process and any order of calls."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def traits_of(path: Sequence[str], seed: int) -> dict[str, F32]:
    """Traits of the class at the end of a WordNet path (root first), by name.

    All lie in -1..1; ``part_presence`` in 0..1 says how much there is of each kind of part.
    """
    counts = [count for count, _ in TRAITS.values()]
    step = np.repeat([inheritance.step for _, inheritance in TRAITS.values()], counts)
    decay = np.repeat([inheritance.decay for _, inheritance in TRAITS.values()], counts)
    walk, ranks = np.zeros(sum(counts)), np.zeros(KINDS)
    for level, wnid in enumerate(path[SHARED_LEVELS:]):
        walk += step * decay**level * rng_of("look", seed, wnid).standard_normal(len(walk))
        ranks += KINDS_RANK.step * KINDS_RANK.decay**level * rng_of("presence", seed, wnid).standard_normal(KINDS)
    traits = dict(zip(TRAITS, np.split(np.sin(walk).astype(np.float32), np.cumsum(counts)[:-1]), strict=True))
    last_shown, first_hidden = np.sort(ranks)[[-SHOWN, -SHOWN - 1]]
    presence = np.clip(0.5 + SHARPNESS * (ranks - (last_shown + first_hidden) / 2), 0, 1)
    return traits | {"part_presence": presence.astype(np.float32)}


def draw_images(path: Sequence[str], seed: int, split: str, indices: Sequence[int], size: int) -> NDArray[np.uint8]:
    """(N, size, size, 3) images of one class; an image depends on its own index, never on its neighbours.

    Args:
        path: WordNet ids from the root down to the class.
        seed: Of the whole data set; another one draws other looks and other images.
        split: ``train`` or ``val``: the same index gives different images in each.
        indices: Which images of the class to draw.
        size: Side in pixels.
    """
    traits = traits_of(path, seed)
    canvas = _Canvas([rng_of("image", seed, path[-1], split, index) for index in indices], size)
    image = _ground(traits, canvas)
    _clutter(image, canvas)
    around, on_body = np.split(np.arange(KINDS).reshape(-1, 2), 2, axis=1)
    _parts(image, traits, canvas, around, 0.72)
    _body(image, traits, canvas)
    _parts(image, traits, canvas, on_body, 0.3)
    return _expose(image, canvas)


class _Canvas:
    """A batch of images: its coordinates, plain (x, y) and along each image's subject (u, v), and random numbers."""

    def __init__(self, rngs: Sequence[np.random.Generator], size: int) -> None:
        self.size, self.rngs = size, rngs
        axis = ((np.arange(size) + 0.5) / size * 2 - 1).astype(np.float32)
        self.y, self.x = np.meshgrid(axis, axis, indexing="ij")  # (S, S) in -1..1
        shift, turn = VARIATION.shift * self.normal(2), VARIATION.turn * self.normal(1)[0]
        scale = np.exp(VARIATION.scale * self.normal(1)[0])
        dx, dy = self.x - shift[0], self.y - shift[1]
        self.u, self.v = ((axis / scale) for axis in _turned(dx, dy, turn))  # (N, S, S)

    def normal(self, k: int) -> F32:
        """(k, N, 1, 1) standard normal numbers."""
        draws = np.stack([rng.standard_normal(k) for rng in self.rngs], axis=1)
        return draws.astype(np.float32)[:, :, None, None]

    def uniform(self, k: int) -> F32:
        """(k, N, 1, 1) numbers in -1..1."""
        draws = np.stack([rng.uniform(-1, 1, k) for rng in self.rngs], axis=1)
        return draws.astype(np.float32)[:, :, None, None]

    def colour(self, trait: F32, tint: float = VARIATION.tint) -> F32:
        """(3, N, 1, 1) a colour trait, tinted anew in each image.

        Most of its brightness is taken out, lest a class be known by being darker or brighter than all others.
        """
        rgb: F32 = np.float32(0.52) + np.float32(0.48) * (trait - EVEN_LIGHT * trait.mean())
        tinted: F32 = rgb[:, None, None, None] + np.float32(tint) * self.normal(3)
        return tinted

    def edge(self, inward: F32) -> F32:
        """1 inside, 0 outside, a soft pixel between; ``inward`` is the distance from the edge, positive inside."""
        mask: F32 = np.clip(inward * np.float32(self.size / 3) + np.float32(0.5), 0, 1)
        return mask

    def wave(self, x: F32, y: F32, frequency: float, direction: float) -> F32:
        """A plane cosine wave in -1..1, ``frequency`` periods to the image side, its phase anew in each image."""
        phase = np.float32(np.pi) * self.uniform(1)[0]
        wave: F32 = np.cos(np.float32(np.pi * frequency) * _turned(x, y, direction)[0] + phase)
        return wave


def _turned(x: F32, y: F32, angle: Any) -> tuple[F32, F32]:
    """Coordinates along and across a direction."""
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return cos * x + sin * y, cos * y - sin * x


def _paint(image: F32, mask: F32, colour: F32) -> None:
    """Lays a colour over (3, N, S, S) images where the mask is 1, in place."""
    for channel, value in zip(image, colour, strict=True):
        channel += mask * (value - channel)


def _ground(traits: dict[str, F32], canvas: _Canvas) -> F32:
    """(3, N, S, S) gradient from an upper to a lower colour, rippled by a wave."""
    upper, lower = (canvas.colour(half, VARIATION.ground_tint) for half in np.split(traits["ground_colour"], 2))
    frequency, direction, contrast = traits["ground_wave"].tolist()
    ripple = canvas.wave(canvas.x, canvas.y, 3.0 + 2.0 * frequency, np.pi / 2 * direction)
    share = np.clip(0.5 + 0.4 * canvas.y + np.float32(0.2 + 0.2 * contrast) * ripple, 0, 1)
    ground: F32 = upper + share * (lower - upper)
    return ground


def _clutter(image: F32, canvas: _Canvas) -> None:
    """Two pale discs that say nothing about the class."""
    for _ in range(2):
        place, colour, radius = canvas.uniform(2), canvas.uniform(3), canvas.uniform(1)[0]
        away = np.hypot(canvas.x - place[0], canvas.y - place[1])
        _paint(image, np.float32(0.7) * canvas.edge(0.14 + 0.06 * radius - away), 0.5 + 0.35 * colour)


def _parts(image: F32, traits: dict[str, F32], canvas: _Canvas, kinds: NDArray[np.int64], distance: float) -> None:
    """Those of some kinds of parts that the class has, each kind at its own place and with its own outline."""
    shapes, colours = traits["part_shape"].reshape(KINDS, 3), traits["part_colour"].reshape(KINDS, 3)
    for place, kind in enumerate(kinds.ravel().tolist()):
        presence = traits["part_presence"][kind]
        if presence <= FAINTEST:
            continue
        bearing, further, size = shapes[kind].tolist()
        jitter = VARIATION.parts * canvas.normal(3)
        angle = np.pi * (place / 3 + 0.12 * bearing) + jitter[0]
        far = distance + 0.05 * further + 0.3 * jitter[1]
        along, across = canvas.u - far * np.cos(angle), canvas.v - far * np.sin(angle)
        away, reach = np.hypot(along, across), (0.19 + 0.05 * size) * np.exp(jitter[2])
        if LOBES[place]:
            reach = reach * (1 + 0.4 * np.cos(LOBES[place] * np.arctan2(across, along) + kind % 3))
        mask = canvas.edge(reach - away)
        if place % 2:
            mask = mask * canvas.edge(away - np.float32(0.45) * reach)
        _paint(image, presence * mask, canvas.colour(colours[kind]))


def _body(image: F32, traits: dict[str, F32], canvas: _Canvas) -> None:
    """A coat with markings inside an outline: a stretched circle with four harmonics."""
    size, elongation, direction = traits["body_frame"].tolist()
    along, across = _turned(canvas.u, canvas.v, np.pi / 2 * direction)
    stretch = np.float32(np.exp(0.35 * elongation))
    radius, angle = np.hypot(along / stretch, across * stretch), np.arctan2(across * stretch, along / stretch)
    reach = np.full_like(radius, 0.48 + 0.12 * size)
    for k, (a, b) in enumerate(traits["body_outline"].reshape(4, 2)):
        height = np.float32(0.16 / (1 + 0.35 * k))
        reach += height * (a * np.cos((k + 2) * angle) + b * np.sin((k + 2) * angle))

    coat = np.repeat(canvas.colour(traits["body_colour"]), canvas.size, axis=2).repeat(canvas.size, axis=3)
    _paint(coat, _markings(traits["mark_wave"], canvas), canvas.colour(traits["mark_colour"]))
    _paint(image, canvas.edge(reach - radius), coat * (np.float32(1.12) - np.float32(0.35) * radius**2))


def _markings(wave: F32, canvas: _Canvas) -> F32:
    """Mask of the markings: stripes, spots, or something between."""
    frequency, direction, contrast, spotted = wave.tolist()
    pitch, angle = 4.5 + 2.5 * frequency, np.pi / 2 * direction
    stripes = canvas.wave(canvas.u, canvas.v, pitch, angle)
    crossing = canvas.wave(canvas.u, canvas.v, pitch, angle + np.pi / 2)
    mixed = stripes + np.float32(0.5 + 0.5 * spotted) * crossing
    mask: F32 = np.clip(0.5 + np.float32(1.1 + 0.6 * contrast) * (mixed - np.float32(0.3)), 0, 1)
    return mask


def _expose(image: F32, canvas: _Canvas) -> NDArray[np.uint8]:
    """Light from one side, sensor noise, and (N, S, S, 3) bytes."""
    light = VARIATION.light * canvas.normal(3)
    image *= np.exp(light[0] + light[1] * canvas.x + light[2] * canvas.y)
    shape = (canvas.size, canvas.size, 3)
    noise = np.stack([rng.standard_normal(shape, dtype=np.float32) for rng in canvas.rngs])
    exposed = image.transpose(1, 2, 3, 0) + np.float32(VARIATION.noise) * noise
    return (255 * np.clip(exposed, 0, 1) + 0.5).astype(np.uint8)
