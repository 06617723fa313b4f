//! Roles of a `crowsnest serve` process.

/// A part of what `crowsnest serve` does for a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The aggregated APIs, proxies and searches; with a cache.
    Aggregated,
    /// Admission and conversion.
    Webhook,
    /// The controllers, in one process at a time; with a cache.
    Controllers,
    /// Collects what members have.
    Cache,
    /// The web UI.
    Ui,
    /// All of them.
    All,
}
