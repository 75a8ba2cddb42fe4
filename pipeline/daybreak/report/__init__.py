"""The report of a night and the board over all nights, which people read in the morning."""
