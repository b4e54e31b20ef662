"""The cables and the switch between the cards, with a subnet manager inside; everything it does is packets."""
