print("results.py: later")
