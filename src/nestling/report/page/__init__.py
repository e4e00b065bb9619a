"""One self-contained page about a run: pictures drawn by hand, a slider over budgets, tables beside every picture."""
