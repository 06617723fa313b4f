//! Paths and closures on models, compared with a naive evaluation, and on a fleet with text index and store.

mod fleet;
mod model;
