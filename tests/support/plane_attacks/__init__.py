"""What users, pods and files of one namespace do to the control plane, beside healthy models."""
