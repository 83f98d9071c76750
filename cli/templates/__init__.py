"""What `privet new` writes, with $name and the like to be filled in."""
