"""Before anything is rented: does it fit, how long does it take, what does it cost, what limits it, and what would be better."""
