"""What is known of models, pods and their capacity."""
