//! Authorization decisions by cluster, resource and namespace .

use crate::authorization::CallerRights;
use crate::document::columns::SCOPE_SEPARATOR;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::rbac::{Readable, Reading};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A decision about the objects of a scope.
#[derive(Debug, Clone)]
pub enum Decided {
    Yes,
    No,
    Named(Arc<BTreeSet<String>>),
}

/// True if one object may be read in this way, by its [`Facet::Scope`] and name.
pub fn permits(rights: &mut CallerRights, reading: Reading, scope: &str, name: &str) -> bool {
    match decided(rights, reading, scope) {
        Decided::Yes => true,
        Decided::No => false,
        Decided::Named(names) => names.contains(name),
    }
}

/// Decides with the right to list, because a search reveals names.
pub fn decide(rights: &mut CallerRights, scope: &str) -> Decided {
    decided(rights, Reading::Listing, scope)
}

fn decided(rights: &mut CallerRights, reading: Reading, scope: &str) -> Decided {
    let mut parts = scope.split(SCOPE_SEPARATOR);
    let (Some(cluster), Some(resource), Some(namespace)) = (parts.next(), parts.next(), parts.next()) else {
        return Decided::No;
    };
    let (Ok(cluster), Some((group, resource))) = (ClusterName::parse(cluster), resource.split_once('/')) else {
        return Decided::No;
    };
    match rights.verdict(reading, &cluster, group, resource, namespace) {
        Readable::All => Decided::Yes,
        Readable::Nothing => Decided::No,
        Readable::Named(names) => Decided::Named(Arc::new(names)),
    }
}
