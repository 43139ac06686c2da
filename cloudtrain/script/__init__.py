"""Reads a training script's syntax tree, offline: its code is never run or imported."""
