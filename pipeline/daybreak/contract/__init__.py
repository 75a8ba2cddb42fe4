"""What all rooms share: records, params, errors, the plugs that a team fills, units and formats."""
