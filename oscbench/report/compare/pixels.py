"""Whether networks saw the pixels that the papers' networks saw."""

from __future__ import annotations

from collections import Counter

from oscbench.report.results import Results, Work


def pixels_said(results: Results) -> str:
    """What is to be said about pixels; empty where every network read the images' own, or nothing is known of any."""
    betons = {work.fingerprint: work for work in results.work if work.stage == "beton"}
    read = [work for work in results.work if work.stage == "features" and "samples" in work.inputs]
    stored = Counter(_stored(work, betons) for work in read)
    said = [f"{count} of {len(read)} feature sets come from {what}" for what, count in sorted(stored.items()) if what]
    if not said:
        return ""
    return (
        f"{'; '.join(said)}: not the pixels that the papers' networks saw, which read each image as it is. "
        "`oscbench data convert --mode raw` stores pixels without loss."
    )


def _stored(features: Work, betons: dict[str, Work]) -> str:
    """What the images were read from, where that is not their own pixels."""
    if "beton" not in features.inputs:
        return ""
    beton = betons.get(features.inputs["beton"])
    if beton is None:
        return "FFCV files that are gone, which may have held JPEG"
    mode, quality = str(beton.config["mode"]), beton.config["quality"]
    return {"raw": "", "mix": f"FFCV files that hold part of the images as JPEG of quality {quality}"}.get(
        mode, f"FFCV files that hold JPEG of quality {quality}"
    )
