//! Member clusters: turns Cluster objects and their Secrets into connections.
//!
//! Owns the registry of members ([`Fleet`]), their credentials and raw connections ([`Connection`], [`Dialer`]),
//! health probes, API discovery, impersonation ([`impersonated_headers`]), registration ([`join()`], [`unjoin()`],
//! [`unregister()`]) and the reverse tunnels of members that cannot be dialed ([`Tunnels`]). Updated by the watches
//! on Cluster objects and Secrets in the control plane; used by the cache, the proxy and the controllers. Member
//! objects are kept in the cache, not here.

pub mod connection;
pub mod credentials;
pub mod dial;
pub mod discovery;
pub mod endpoints;
pub mod error;
pub mod impersonate;
pub mod join;
pub mod member;
pub mod permissions;
pub mod probe;
pub mod registry;
pub mod tunnel;
pub mod uninstall;
pub mod unjoin;
pub mod unregister;
mod wait;
mod write;

pub use connection::Connection;
pub use credentials::{ConnectionSpec, MemberRoute, Token};
pub use dial::{Dialer, MemberIo};
pub use discovery::{ApiResource, ApiResources};
pub use endpoints::EndpointRules;
pub use error::Error;
pub use impersonate::{ImpersonatedAttributes, impersonated_headers};
pub use join::{ClusterLocation, JoinOptions, JoinResult, ReportedTokens, join};
pub use member::Member;
pub use permissions::MemberPermissions;
pub use probe::Probe;
pub use registry::{Fleet, FleetOptions, MemberChange, MemberChanges};
pub use tunnel::Tunnels;
pub use unjoin::{UnjoinOptions, unjoin};
pub use unregister::{UnregisterOptions, unregister};
