"""What each figure shows, as documents of plain numbers and texts; ``page/chart.js`` and ``plots/chart.py`` draw them.

A document has ``kind`` (xy, heat, parallel), ``keys`` (what series differ in: their values with label and style),
``choose`` (keys of which one value is shown at a time), ``arrangements`` (which keys set panels apart, and which ones
colours and lines stand for) and ``series``, each with ``keys`` and its numbers.
"""
