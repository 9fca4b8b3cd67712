"""What people read and type: times, filters, fields, tables, names, and the gate for text that nobody trusts."""
