"""Shows the nights of all models: on the terminal, as a board, and as pages that stay up to date."""
