"""The state of the card: flat data and access to it, imported by engines and commands, importing none of them."""
