//! Paths and closures on models and on generated objects, compared with a naive evaluation, and on a fleet with text index
//! and store.

mod fleet;
mod generated;
mod model;
