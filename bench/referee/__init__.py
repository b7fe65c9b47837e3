"""The referee: what replay libraries promise and what they do, checked in the same way for each."""
