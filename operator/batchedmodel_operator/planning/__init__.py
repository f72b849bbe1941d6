"""What is to be done to a BatchedModel: its pod template, how its pods are replaced, the steps."""
