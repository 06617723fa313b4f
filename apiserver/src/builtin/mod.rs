//! Built-in kinds: the resource table, defaults, validation, update strategies.
