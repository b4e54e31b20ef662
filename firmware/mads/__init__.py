"""The management agents of the card's ports: subnet management (SMA) and performance management (PMA)."""
