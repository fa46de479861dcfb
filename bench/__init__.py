"""What the product costs, beside what a user would write or pick instead, on one machine in one go."""
