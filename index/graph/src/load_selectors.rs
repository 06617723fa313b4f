//! Reads the selectors of all objects in the store, at the beginning of a session.

use crate::error::SinkError;
use crate::selectors::PodSelectors;
use crowsnest_apimachinery::references::{CustomRule, SELECTING_KINDS};
use crowsnest_apimachinery::selector::Selector;
use crowsnest_index::export::ChangeSource;
use crowsnest_search::paths::{Links, Target};
use crowsnest_store::{CollectionStates, Error, Object, Scan};
use std::sync::Arc;

/// Records read at once.
const RECORDS_PER_READ: usize = 500;

/// Reads all selectors, and returns the number of objects that were skipped because they cannot be decoded. Selectors of
/// objects that must not be written are included: SELECTS edges are only created from nodes that exist.
pub(crate) async fn load_pod_selectors(
    source: &ChangeSource,
    states: &CollectionStates,
    rules: &[CustomRule],
) -> Result<(PodSelectors, u64), SinkError> {
    let (mut selectors, mut skipped) = (PodSelectors::default(), 0);
    for (collection, state) in states.all() {
        if !SELECTING_KINDS.contains(&(&*collection.resource.group, &*state.kind)) {
            continue;
        }
        let mut scan = Scan { collection, namespaces: None, after: None, labels: None };
        loop {
            let (records, next) = source.store.records(&scan, &|_| Ok(true), RECORDS_PER_READ).await?;
            for object in source.store.bodies(records).await? {
                let record = Arc::clone(&object.record);
                match read_selector(source, object, rules) {
                    Ok(selects) => selectors.set(&record, selects),
                    // An object that cannot be decoded must not block the others.
                    Err(error) => {
                        tracing::warn!(error = error.chain(), "cannot read a selector of Pods; its object is skipped");
                        skipped += 1;
                    }
                }
            }
            match next {
                None => break,
                next => scan.after = next,
            }
        }
    }
    Ok((selectors, skipped))
}

/// The Pod selector of an object, and the field that states it.
fn read_selector(
    source: &ChangeSource,
    object: Object,
    rules: &[CustomRule],
) -> Result<Option<(Selector, String)>, Error> {
    let object = source.redact(object)?;
    let links = Links::from_object(&object, rules)?.links;
    Ok(links.into_iter().find_map(|link| match link.target {
        Target::Pods(selector) => Some((selector, link.via)),
        Target::Key(_) => None,
    }))
}
