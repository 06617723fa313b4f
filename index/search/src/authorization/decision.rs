//! Authorization decisions by cluster, resource and namespace.

use crate::authorization::CallerPermissions;
use crate::document::columns::SCOPE_SEPARATOR;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::rbac::{ReadKind, ReadableNames};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A decision about the objects of a scope.
#[derive(Debug, Clone)]
pub enum ScopeDecision {
    Yes,
    No,
    /// Only objects with these names.
    Named(Arc<BTreeSet<String>>),
}

/// True if the caller may read one object in this way. The object is given by its value of
/// [`Facet::Scope`](crate::document::columns::Facet::Scope) and its name.
pub fn allows_read(permissions: &mut CallerPermissions, read_kind: ReadKind, scope: &str, name: &str) -> bool {
    match decide_read(permissions, read_kind, scope) {
        ScopeDecision::Yes => true,
        ScopeDecision::No => false,
        ScopeDecision::Named(names) => names.contains(name),
    }
}

/// Decides by the permission to list, because a search reveals names.
pub fn decide(permissions: &mut CallerPermissions, scope: &str) -> ScopeDecision {
    decide_read(permissions, ReadKind::Listing, scope)
}

fn decide_read(permissions: &mut CallerPermissions, read_kind: ReadKind, scope: &str) -> ScopeDecision {
    let mut parts = scope.split(SCOPE_SEPARATOR);
    let (Some(cluster), Some(resource), Some(namespace)) = (parts.next(), parts.next(), parts.next()) else {
        return ScopeDecision::No;
    };
    let (Ok(cluster), Some((group, resource))) = (ClusterName::parse(cluster), resource.split_once('/')) else {
        return ScopeDecision::No;
    };
    match permissions.readable_names(read_kind, &cluster, group, resource, namespace) {
        ReadableNames::All => ScopeDecision::Yes,
        ReadableNames::Nothing => ScopeDecision::No,
        ReadableNames::Named(names) => ScopeDecision::Named(Arc::new(names)),
    }
}
