"""Draws docs/demo_classes.png: a few classes of each role of protocols 1 and 3 as the embedded data shows them.

python scripts/make_demo_picture.py
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from oscbench.artifacts import atomic_file
from oscbench.data.looks import draw_images
from oscbench.protocols.base import ROLES, load_protocol
from oscbench.protocols.wordnet import load_tree

OUT = Path(__file__).parents[1] / "docs" / "demo_classes.png"
SIZE, GAP, LABEL, HEAD, SIDE = 104, 8, 20, 44, 92
INK, PALE, PAPER = (30, 34, 42), (110, 116, 128), (255, 255, 255)
ROLE_COLOURS = {"known": (26, 127, 77), "negative": (191, 120, 0), "unknown": (178, 42, 58)}

SHOWN = {
    "1": {
        "known": ("n02085620", "n02088364", "n02096177", "n02099601", "n02106662", "n02110185"),
        "negative": ("n02119022", "n02114367", "n02129165", "n02134084", "n02391049", "n02480495"),
        "unknown": ("n07693725", "n07720875", "n02930766", "n03345487", "n02708093", "n02787622"),
    },
    "3": {
        "known": ("n02085620", "n01531178", "n02165105", "n02125311", "n02484975", "n03201208"),
        "negative": ("n02085782", "n01582220", "n02172182", "n02127052", "n02488702", "n03742115"),
        "unknown": ("n02086079", "n01614925", "n02236044", "n02128757", "n02492660", "n04099969"),
    },
}
TITLES = {
    "1": "Protocol 1: all known classes are dogs, hard to tell apart; the unknown ones are far away",
    "3": "Protocol 3: known classes of every kind, easy to tell apart; their sisters are unknown",
}


def classes_of(number: str) -> dict[str, tuple[str, ...]]:
    """The chosen classes by role, each checked to have that role."""
    protocol = load_protocol(number)
    for role, wnids in SHOWN[number].items():
        strangers = set(wnids) - {member.wnid for member in protocol.role(role)}  # type: ignore[arg-type]
        if strangers:
            raise SystemExit(f"protocol {number}: {sorted(strangers)} are not {role}")
    return SHOWN[number]


def draw_block(number: str) -> Image.Image:
    """One protocol: a row of class images per role."""
    tree, chosen = load_tree(), classes_of(number)
    columns = max(map(len, chosen.values()))
    width, row = SIDE + columns * (SIZE + GAP), SIZE + LABEL + GAP
    block = Image.new("RGB", (width, HEAD + len(ROLES) * row), PAPER)
    pen, font = ImageDraw.Draw(block), ImageFont.load_default(13)
    pen.text((GAP, 14), TITLES[number], fill=INK, font=ImageFont.load_default(17))
    for i, role in enumerate(ROLES):
        top = HEAD + i * row
        pen.text((GAP, top + SIZE // 2 - 8), role, fill=ROLE_COLOURS[role], font=ImageFont.load_default(16))
        for j, wnid in enumerate(chosen[role]):
            left = SIDE + j * (SIZE + GAP)
            drawn = Image.fromarray(draw_images(tree.path(wnid), 0, "val", [0], 2 * SIZE)[0])
            block.paste(drawn.resize((SIZE, SIZE), Image.Resampling.LANCZOS), (left, top))
            pen.rectangle((left - 1, top - 1, left + SIZE, top + SIZE), outline=ROLE_COLOURS[role])
            pen.text((left + SIZE // 2, top + SIZE + 3), tree[wnid].name[:17], fill=PALE, font=font, anchor="ma")
    return block


def main() -> None:
    """Writes the picture."""
    blocks = [draw_block(number) for number in SHOWN]
    picture = Image.new("RGB", (max(b.width for b in blocks) + GAP, sum(b.height for b in blocks) + GAP), PAPER)
    top = 0
    for block in blocks:
        picture.paste(block, (0, top))
        top += block.height
    with atomic_file(OUT) as temporary:
        picture.save(temporary, format="PNG", optimize=True)
    print(OUT)


if __name__ == "__main__":
    main()
