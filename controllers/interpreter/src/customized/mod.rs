//! Interpreters that users configure: Lua scripts of ResourceInterpreterCustomizations and webhooks.

pub mod declarative;
pub mod webhook;
