//! Roles of a `crowsnest serve` process.

/// A part of `crowsnest serve` that can be enabled (`--roles`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Aggregated APIs, proxies and search; with a cache.
    Aggregated,
    /// Admission and conversion webhooks.
    Webhook,
    /// Controllers, active in one process at a time; with a cache.
    Controllers,
    /// Collects the objects of members.
    Cache,
    /// The web UI.
    Ui,
    /// All roles.
    All,
}
