"""The tiered store of keys and values: keys, frames, tiers, transfers and the ``TieredStore`` facade."""
