"""Tasks of any roles, by whatever means they find each other."""

from __future__ import annotations

from cloudtrain.strategies.strategy import Strategy

CUSTOM = Strategy(name="custom", example={"reader": 1, "trainer": 2}, deciders="all")
