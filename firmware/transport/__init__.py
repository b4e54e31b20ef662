"""The transport of the card: work requests become packets, packets become memory and completions (IBTA chapter 9)."""
