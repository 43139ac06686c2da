"""What a task's log and files tell of its failure or success, with hints."""
