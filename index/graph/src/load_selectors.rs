//! Reads the selectors of all objects in the store, for a sink that resumes an earlier generation.

use crate::error::SinkError;
use crate::selectors::PodSelectors;
use crowsnest_apimachinery::references::{CustomRule, SELECTING_KINDS};
use crowsnest_index::export::ChangeSource;
use crowsnest_search::paths::{Links, Target};
use crowsnest_store::{Scan, States};

/// Records read at once.
const RECORDS_PER_READ: usize = 500;

/// Reads all selectors. Those of objects that must not be written are included: SELECTS edges are only created from
/// nodes that exist.
pub(crate) async fn load_pod_selectors(
    source: &ChangeSource,
    states: &States,
    rules: &[CustomRule],
) -> Result<PodSelectors, SinkError> {
    let mut selectors = PodSelectors::default();
    for (collection, state) in states.all() {
        if !SELECTING_KINDS.contains(&(&*collection.resource.group, &*state.kind)) {
            continue;
        }
        let mut scan = Scan { collection, namespaces: None, after: None, labels: None };
        loop {
            let (records, next) = source.store.records(&scan, &|_| Ok(true), RECORDS_PER_READ).await?;
            for object in source.store.bodies(records).await? {
                let selects =
                    Links::from_object(&object, rules)?.links.into_iter().find_map(|link| match link.target {
                        Target::Pods(selector) => Some((selector, link.via)),
                        Target::Key(_) => None,
                    });
                selectors.set(&object.record, selects);
            }
            match next {
                None => break,
                next => scan.after = next,
            }
        }
    }
    Ok(selectors)
}
