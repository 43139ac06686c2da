"""The commands, one file each: return values, and print nothing but progress."""
