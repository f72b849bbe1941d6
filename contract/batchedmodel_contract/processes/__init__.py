"""What the processes are told, and what they ask each other."""
