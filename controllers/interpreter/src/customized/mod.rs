//! User-defined interpreters: Lua scripts of ResourceInterpreterCustomizations, and webhooks.

pub mod declarative;
pub mod webhook;
