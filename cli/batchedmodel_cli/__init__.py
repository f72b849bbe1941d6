"""What a person types: `batchedmodel run`, `simulate` and `diff`.

It knows the contract and starts the other processes; of what these decide in a cluster `diff`
imports the pure part (`diff/rehearsal`), and nothing else imports anything of them.
"""
