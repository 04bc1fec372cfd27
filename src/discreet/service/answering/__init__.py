"""What every door calls: queries and statements of an account, answered from its budget."""
