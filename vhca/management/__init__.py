"""What every port of a subnet has, whether of a card or of a switch: its counters, its agents' rules.

Sans-IO and below the hardware's ABI: the firmware and the fabric both build their agents on it.
"""
