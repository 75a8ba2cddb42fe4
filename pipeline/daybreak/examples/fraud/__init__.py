"""Card payments: which are fraud, as it turns out two weeks later."""
