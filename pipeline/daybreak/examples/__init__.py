"""Contains examples, each a team's data and model in a folder of its own. Nothing imports them."""
