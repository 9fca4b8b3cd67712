"""Drawing: the gate that makes texts harmless, widths of columns, plots."""
