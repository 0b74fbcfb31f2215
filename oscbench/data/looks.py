"""Looks of the embedded data: what an image of a class looks like follows from the class's WordNet path alone.

A look is a vector of traits (colours, outline, markings, parts, ground). It is the end of a random walk down the
WordNet path: every synset adds a step drawn from its own name, each level a smaller one. Classes that share most of
their path therefore share most of their look, and the traits of far classes have little in common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

GENERATOR = 1
"""Version of the drawing; part of the data's fingerprint, so that a change of it makes other data."""

STEP_DECAY = 0.94
"""How much smaller the step of each level is than that of the level above."""
STEP = 0.42
"""Step of the first level, in units of the trait range."""

SHARED_LEVELS = 2
"""Entity and physical entity, which everything that can be pictured is: no steps, the walk starts below them."""

TRAITS = {
    "ground_colour": 6,  # two colours of the gradient behind
    "ground_wave": 3,  # frequency, direction, contrast
    "body_colour": 3,
    "body_outline": 8,  # four harmonics, cosine and sine each
    "body_frame": 3,  # size, elongation, direction
    "mark_colour": 3,
    "mark_wave": 4,  # frequency, direction, contrast, stripes to spots
    "part_colour": 3,
    "parts": 9,  # three parts: bearing, distance, size
}
N_TRAITS = sum(TRAITS.values())


def rng_of(*key: str | int) -> np.random.Generator:
    """A generator that depends on the key alone, in any process and any order of calls."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def traits_of(path: Sequence[str], seed: int) -> dict[str, F32]:
    """Traits in (-1, 1) of the class at the end of a WordNet path (root first), by name."""
    walk = np.zeros(N_TRAITS)
    for level, wnid in enumerate(path[SHARED_LEVELS:]):
        walk += STEP * STEP_DECAY**level * rng_of("look", seed, wnid).standard_normal(N_TRAITS)
    squashed = (walk / np.sqrt(1 + walk**2)).astype(np.float32)
    ends = np.cumsum(list(TRAITS.values()))
    return dict(zip(TRAITS, np.split(squashed, ends[:-1]), strict=True))


@dataclass(frozen=True)
class Variation:
    """How much the images of one class differ among themselves (standard deviations, in parts of the image)."""

    shift: float = 0.06
    turn: float = 0.25
    scale: float = 0.10
    tint: float = 0.06
    light: float = 0.15
    parts: float = 0.12
    noise: float = 0.05


VARIATION = Variation()


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
    rngs = [rng_of("image", seed, path[-1], split, index) for index in indices]
    canvas = _Canvas(rngs, size)
    image = _ground(traits, canvas)
    _clutter(image, canvas)
    _body(image, traits, canvas)
    return _expose(image, canvas)


class _Canvas:
    """Coordinates of a batch of images, centred on each image's subject, and each image's random numbers."""

    def __init__(self, rngs: Sequence[np.random.Generator], size: int) -> None:
        self.n, self.size, self.rngs = len(rngs), size, rngs
        axis = ((np.arange(size) + 0.5) / size * 2 - 1).astype(np.float32)
        self.y, self.x = np.meshgrid(axis, axis, indexing="ij")  # (S, S) in -1..1
        shift = 2 * VARIATION.shift * self.normal(2)
        turn, scale = VARIATION.turn * self.normal(1), np.exp(VARIATION.scale * self.normal(1))
        dx, dy = self.x - shift[0], self.y - shift[1]
        self.u = (np.cos(turn[0]) * dx + np.sin(turn[0]) * dy) / scale[0]  # (N, S, S) the subject's own axes
        self.v = (np.cos(turn[0]) * dy - np.sin(turn[0]) * dx) / scale[0]

    def normal(self, k: int) -> F32:
        """(k, N, 1, 1) standard normal numbers."""
        draws = np.stack([rng.standard_normal(k) for rng in self.rngs], axis=1)
        return draws.astype(np.float32)[:, :, None, None]

    def uniform(self, k: int) -> F32:
        """(k, N, 1, 1) numbers in -1..1."""
        draws = np.stack([rng.uniform(-1, 1, k) for rng in self.rngs], axis=1)
        return draws.astype(np.float32)[:, :, None, None]

    def colour(self, trait: F32) -> list[F32]:
        """Three (N, 1, 1) channels of a colour trait, tinted by each image's own light."""
        tint = VARIATION.tint * self.normal(3)
        return [0.5 + 0.46 * trait[i] + tint[i] for i in range(3)]

    def edge(self, distance: F32) -> F32:
        """1 inside, 0 outside, a soft pixel between; ``distance`` is positive inside, in half image sides."""
        inside: F32 = np.clip(distance * (self.size / 3) + 0.5, 0, 1)
        return inside


def _paint(image: F32, mask: F32, colour: Sequence[F32 | float]) -> None:
    """Lays a colour over the image where the mask is 1, in place."""
    for i in range(3):
        image[i] += mask * (colour[i] - image[i])


def _wave(canvas: _Canvas, x: F32, y: F32, frequency: float, direction: float) -> F32:
    """A cosine wave in -1..1 with a phase of its own in each image."""
    phase = np.pi * canvas.uniform(1)[0]
    ahead = np.pi * frequency * (np.cos(direction) * x + np.sin(direction) * y)
    wave: F32 = np.cos(ahead + phase)
    return wave


def _ground(traits: dict[str, F32], canvas: _Canvas) -> F32:
    """(3, N, S, S) gradient between two colours, rippled by a wave."""
    first, second = canvas.colour(traits["ground_colour"][:3]), canvas.colour(traits["ground_colour"][3:])
    frequency, direction, contrast = traits["ground_wave"]
    ripple = _wave(canvas, canvas.x, canvas.y, 3.0 + 2.0 * frequency, np.pi / 2 * direction)
    share = np.clip(0.5 + 0.4 * canvas.y + (0.2 + 0.2 * contrast) * ripple, 0, 1)
    return np.stack([first[i] + share * (second[i] - first[i]) for i in range(3)])


def _clutter(image: F32, canvas: _Canvas) -> None:
    """Two discs that say nothing about the class."""
    for _ in range(2):
        place, colour, radius = canvas.uniform(2), canvas.uniform(3), canvas.uniform(1)[0]
        away = np.hypot(canvas.x - place[0], canvas.y - place[1])
        _paint(image, 0.7 * canvas.edge(0.14 + 0.06 * radius - away), [0.5 + 0.35 * colour[i] for i in range(3)])


def _body(image: F32, traits: dict[str, F32], canvas: _Canvas) -> None:
    """Three parts behind a marked body whose outline is a circle with four harmonics."""
    size, elongation, direction = traits["body_frame"]
    cos, sin = np.cos(np.pi / 2 * direction), np.sin(np.pi / 2 * direction)
    stretch = np.exp(0.35 * elongation)
    along = (cos * canvas.u + sin * canvas.v) / stretch
    across = (cos * canvas.v - sin * canvas.u) * stretch
    radius, angle = np.hypot(along, across), np.arctan2(across, along)
    reach = np.full_like(radius, 0.48 + 0.12 * size)
    for k in range(4):
        a, b = 0.16 / (1 + 0.35 * k) * traits["body_outline"][2 * k : 2 * k + 2]
        reach += a * np.cos((k + 2) * angle) + b * np.sin((k + 2) * angle)

    _parts(image, traits, canvas)
    body, marks = canvas.colour(traits["body_colour"]), canvas.colour(traits["mark_colour"])
    pattern = _markings(traits["mark_wave"], canvas)
    shade = 1.12 - 0.35 * radius**2
    coat = [shade * (body[i] + pattern * (marks[i] - body[i])) for i in range(3)]
    _paint(image, canvas.edge(reach - radius), coat)


def _parts(image: F32, traits: dict[str, F32], canvas: _Canvas) -> None:
    colour = canvas.colour(traits["part_colour"])
    for k in range(3):
        bearing, distance, size = traits["parts"][3 * k : 3 * k + 3]
        jitter = VARIATION.parts * canvas.normal(3)
        turn = np.pi * (2 * k / 3 + 0.6 * bearing) + jitter[0]
        far = 0.55 + 0.15 * distance + 0.3 * jitter[1]
        away = np.hypot(canvas.u - far * np.cos(turn), canvas.v - far * np.sin(turn))
        reach = (0.2 + 0.12 * size) * np.exp(jitter[2])
        _paint(image, canvas.edge(reach - away), [c * (1.1 - 0.4 * (away / 0.3) ** 2) for c in colour])


def _markings(wave: F32, canvas: _Canvas) -> F32:
    """Share of the marking colour on the body, 0..1: stripes, spots, or something between."""
    frequency, direction, contrast, spotted = wave
    pitch, turn = 4.5 + 2.5 * frequency, np.pi / 2 * direction
    stripes = _wave(canvas, canvas.u, canvas.v, pitch, turn)
    crossing = _wave(canvas, canvas.u, canvas.v, pitch, turn + np.pi / 2)
    mixed = stripes + (0.5 + 0.5 * spotted) * crossing
    share: F32 = np.clip(0.5 + (1.1 + 0.6 * contrast) * (mixed - 0.3), 0, 1)
    return share


def _expose(image: F32, canvas: _Canvas) -> NDArray[np.uint8]:
    """Light from one side, sensor noise, and (N, S, S, 3) bytes."""
    light = VARIATION.light * canvas.normal(3)
    image *= np.exp(light[0] + light[1] * canvas.x + light[2] * canvas.y)
    shape = (canvas.size, canvas.size, 3)
    noise = np.stack([rng.standard_normal(shape, dtype=np.float32) for rng in canvas.rngs])
    exposed = image.transpose(1, 2, 3, 0) + VARIATION.noise * noise
    return (255 * np.clip(exposed, 0, 1) + 0.5).astype(np.uint8)
