//! Which documents of a segment a caller may read (invariant I9). Decided once per distinct (cluster, resource,
//! namespace), and remembered for the whole segment until a rule changes.

use crate::rights::CallerRights;
use crate::text::columns::{Facet, SCOPE_SEPARATOR};
use crate::text::segments::{Parts, Values};
use crate::text::terms::{Docs, Marks};
use crowsnest_api::names::ClusterName;
use crowsnest_api::rbac::Readable;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What may be read of a scope.
#[derive(Debug, Clone)]
pub enum Decided {
    Yes,
    No,
    Named(Arc<BTreeSet<String>>),
}

/// A segment's documents that a caller may read.
pub fn permitted(parts: &Parts, values: &Values, rights: &Mutex<CallerRights>) -> tantivy::Result<Docs> {
    {
        let rights = rights.lock();
        if rights.is_unlimited() {
            return Ok(Docs::All);
        }
        if let Some(docs) = rights.remembered(parts.id()) {
            return Ok(docs);
        }
    }
    let (verdicts, asked) = verdicts(parts, values, rights);
    let docs = readable(parts, &verdicts)?;
    if !asked {
        rights.lock().remember(parts.id(), &docs);
    }
    Ok(docs)
}

/// By number of the scopes that are in the segment, and whether some cluster decided itself: that is not remembered.
fn verdicts(parts: &Parts, values: &Values, rights: &Mutex<CallerRights>) -> (Vec<Option<Decided>>, bool) {
    let scopes = values.of(Facet::Scope);
    let (mut verdicts, mut asked) = (vec![None; scopes.end()], false);
    let mut rights = rights.lock();
    for doc in 0..parts.reader.max_doc() {
        let number = parts.column(Facet::Scope).first(doc);
        let (Some(verdict @ None), Some(scope)) = (verdicts.get_mut(number as usize), scopes.text(number)) else {
            continue;
        };
        let cluster = scope.split(SCOPE_SEPARATOR).next().and_then(|cluster| ClusterName::parse(cluster).ok());
        asked |= cluster.is_some_and(|cluster| rights.is_reviewed(&cluster));
        *verdict = Some(rights.decided(scope, decide));
    }
    (verdicts, asked)
}

fn readable(parts: &Parts, verdicts: &[Option<Decided>]) -> tantivy::Result<Docs> {
    let max_doc = parts.reader.max_doc();
    let (mut marks, mut named) = (Marks::new(max_doc, u64::MAX), Vec::new());
    for doc in 0..max_doc {
        let scope = parts.column(Facet::Scope).first(doc);
        match verdicts.get(scope as usize) {
            Some(Some(Decided::Yes)) => marks.add(&[doc]),
            Some(Some(Decided::Named(names))) => named.push((parts.column(Facet::Name).first(doc), doc, names)),
            // What has no scope is nobody's to see.
            _ => {}
        }
    }
    for (name, doc, names) in named {
        if parts.names.get(name).is_some_and(|name| names.contains(name)) {
            marks.add(&[doc]);
        }
    }
    Ok(marks.done())
}

/// Whether one object may be read, by its [`Facet::Scope`] and name.
pub fn permits(rights: &mut CallerRights, scope: &str, name: &str) -> bool {
    match decide(rights, scope) {
        Decided::Yes => true,
        Decided::No => false,
        Decided::Named(names) => names.contains(name),
    }
}

fn decide(rights: &mut CallerRights, scope: &str) -> Decided {
    let mut parts = scope.split(SCOPE_SEPARATOR);
    let (Some(cluster), Some(resource), Some(namespace)) = (parts.next(), parts.next(), parts.next()) else {
        return Decided::No;
    };
    let (Ok(cluster), Some((group, resource))) = (ClusterName::parse(cluster), resource.split_once('/')) else {
        return Decided::No;
    };
    match rights.verdict(&cluster, group, resource, namespace) {
        Readable::All => Decided::Yes,
        Readable::Nothing => Decided::No,
        Readable::Named(names) => Decided::Named(Arc::new(names)),
    }
}
