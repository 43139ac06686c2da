"""How nodes store and read files by themselves: one presigner for each kind of store."""
