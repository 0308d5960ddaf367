"""RUDDER in other programs. Nothing here is imported unless that program asks for it."""
