"""Jobs as state: admission, turns, progress, cancel."""
