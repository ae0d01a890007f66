"""How families of APIs word things: errors, events, signs of life.  One file a dialect."""
