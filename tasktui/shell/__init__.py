"""The frame of every screen: live data, heading, actions."""
