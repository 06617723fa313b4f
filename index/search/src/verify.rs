//! Compares the text index with the store: numbers of objects by cluster and kind, and samples of objects.
//!
//! Works with any engine, because it uses searches, with the identity of the process itself. Objects may change during
//! the comparison, so differences count only if a second comparison confirms them.

use super::collect::TopHitsRequest;
use super::engine::{Engine, SearchContext};
use super::plan::predicate::Match;
use crate::Searcher;
use crate::document::columns::{Facet, Keyword, Number};
use crate::document::{Document, qualified_kind};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_store::{Error, Object, Seq};
use crowsnest_store::{ReplayedChange, Store};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of listed differences; the others are counted.
const MAX_LISTED: usize = 20;
/// Number of consecutive objects per sample.
const SAMPLE_SIZE: usize = 10;
/// Time limit for the index to catch up with the store.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(30);

/// Result of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verification {
    /// Number of changes that were not searchable at the end; not 0 if the index lags.
    pub behind: u64,
    /// Objects in the store.
    pub stored: u64,
    /// Objects in the index.
    pub indexed: u64,
    /// The first clusters and kinds with different numbers of objects.
    pub counts: Vec<CountDifference>,
    /// Number of compared objects.
    pub samples: u64,
    /// The first objects that the index does not find by their stored values.
    pub objects: Vec<ObjectDifference>,
    /// Number of differences that are not listed.
    pub more: u64,
    /// Parts that could not be compared.
    pub notices: BTreeSet<String>,
}

/// Numbers of objects of one kind in one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CountDifference {
    pub cluster: String,
    /// With its group: `Deployment.apps`.
    pub kind: String,
    pub stored: u64,
    pub indexed: u64,
}

/// An object that differs between index and store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectDifference {
    pub cluster: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// The field by which it was not found.
    pub field: String,
}

/// Numbers of objects by cluster and kind.
type Counts = BTreeMap<(String, String), u64>;

impl Searcher {
    /// Compares the text index with the store. About `samples` objects are read, at positions that `random` chooses:
    /// numbers from 0 to 1.
    pub async fn verify_text_index(
        &self,
        samples: usize,
        random: &mut (dyn FnMut() -> f64 + Send),
    ) -> Result<Verification, Error> {
        let mut found = Verification { behind: self.wait_until_searchable().await, ..Verification::default() };
        let mut differing = self.compare_counts(&mut found).await?;
        if !differing.is_empty() {
            found.behind = self.wait_until_searchable().await;
            let before = std::mem::take(&mut differing);
            differing = self.compare_counts(&mut found).await?;
            differing.retain(|key, _| before.contains_key(key));
        }
        for ((cluster, kind), (stored, indexed)) in differing {
            match found.counts.len() < MAX_LISTED {
                true => found.counts.push(CountDifference { cluster, kind, stored, indexed }),
                false => found.more += 1,
            }
        }
        self.compare_samples(samples, random, &mut found).await?;
        Ok(found)
    }

    /// Waits until the current contents of the store are searchable; returns the number of changes still missing.
    async fn wait_until_searchable(&self) -> u64 {
        let latest = self.latest();
        let mut searchable = self.inner.engine.searchable();
        drop(tokio::time::timeout(CATCH_UP_TIMEOUT, searchable.wait_for(|seq| *seq >= latest)).await);
        self.lag()
    }

    fn context(&self) -> SearchContext {
        let permissions = self.inner.rbac_rules.for_caller(&UserInfo::system());
        SearchContext::new(permissions, Instant::now(), CATCH_UP_TIMEOUT)
    }

    /// Clusters and kinds with different numbers of objects in the store and in the index.
    async fn compare_counts(&self, found: &mut Verification) -> Result<BTreeMap<(String, String), (u64, u64)>, Error> {
        let store = &self.inner.cache.store;
        let kinds: BTreeMap<_, _> =
            self.inner.cache.states.all().into_iter().map(|(key, state)| (key, state.kind.to_string())).collect();
        let mut stored = Counts::new();
        for (key, count) in store.counts().await? {
            let kind = kinds.get(&key).map(|kind| qualified_kind(&key.resource.group, kind)).unwrap_or_default();
            *stored.entry((key.cluster.to_string(), kind)).or_default() += count;
        }
        let clusters: BTreeSet<String> = stored.keys().map(|(cluster, _)| cluster.clone()).collect();
        let engine = &self.inner.engine;
        let (indexed, notices) = count_indexed(engine.as_ref(), &self.context(), &clusters).await?;
        found.notices = notices;
        (found.stored, found.indexed) = (stored.values().sum(), indexed.values().sum());
        Ok(differences(&stored, &indexed))
    }

    async fn compare_samples(
        &self,
        samples: usize,
        random: &mut (dyn FnMut() -> f64 + Send),
        found: &mut Verification,
    ) -> Result<(), Error> {
        let store = &self.inner.cache.store;
        let mut seen = BTreeSet::new();
        for _ in 0..samples.div_ceil(SAMPLE_SIZE) {
            for object in sample_objects(store.as_ref(), self.latest(), random()).await? {
                if !seen.insert(object.record.id) {
                    continue;
                }
                found.samples += 1;
                let Some(field) = self.find_confirmed_difference(&object).await? else { continue };
                let (record, key) = (&object.record, &object.record.key);
                match found.objects.len() < MAX_LISTED {
                    true => found.objects.push(ObjectDifference {
                        cluster: key.cluster().to_string(),
                        kind: record.kind.to_string(),
                        namespace: key.namespace.to_string(),
                        name: key.name.to_string(),
                        field,
                    }),
                    false => found.more += 1,
                }
            }
        }
        Ok(())
    }

    /// The field by which the index does not find an object, unless the object has changed since it was read.
    async fn find_confirmed_difference(&self, object: &Object) -> Result<Option<String>, Error> {
        let engine = self.inner.engine.as_ref();
        if find_missing_field(engine, &self.context(), object).await?.is_none() {
            return Ok(None);
        }
        self.wait_until_searchable().await;
        match self.inner.cache.store.get(&object.record.key).await? {
            Some(now) if now.record.id == object.record.id => find_missing_field(engine, &self.context(), &now).await,
            _ => Ok(None),
        }
    }
}

fn differences(stored: &Counts, indexed: &Counts) -> BTreeMap<(String, String), (u64, u64)> {
    let keys: BTreeSet<&(String, String)> = stored.keys().chain(indexed.keys()).collect();
    let count_of = |counts: &Counts, key: &(String, String)| counts.get(key).copied().unwrap_or_default();
    let both = keys.into_iter().map(|key| (key.clone(), (count_of(stored, key), count_of(indexed, key))));
    both.filter(|(_, (stored, indexed))| stored != indexed).collect()
}

/// Numbers of objects in the index, with the engine's notices. Objects of other clusters than these are counted under
/// an empty cluster and kind.
async fn count_indexed(
    engine: &dyn Engine,
    context: &SearchContext,
    clusters: &BTreeSet<String>,
) -> Result<(Counts, BTreeSet<String>), Error> {
    let (mut counts, mut notices) = (Counts::new(), BTreeSet::new());
    let kinds = TopHitsRequest { facets: vec![Facet::Kind], ..TopHitsRequest::total_only() };
    for cluster in clusters {
        let matches = Match::Clusters([cluster.clone()].into());
        let results = engine.top_hits(context, &matches, &kinds).await?;
        let values = results.facets.into_iter().flatten();
        counts.extend(values.map(|(kind, count)| ((cluster.clone(), kind.to_string()), count)));
        notices.extend(results.notices);
    }
    let others = Match::Clusters(clusters.clone()).negated();
    let results = engine.top_hits(context, &others, &TopHitsRequest::total_only()).await?;
    notices.extend(results.notices);
    if results.total > 0 {
        counts.insert((String::new(), String::new()), results.total);
    }
    Ok((counts, notices))
}

/// Some objects whose last changes follow a position in the sequence of all changes: 0 is the first change, 1 the last
/// one.
async fn sample_objects(store: &dyn Store, latest: Seq, position: f64) -> Result<Vec<Object>, Error> {
    // Precise enough for sampling: numbers of changes are far below 2^53.
    let since = Seq((latest.0 as f64 * position.clamp(0.0, 1.0)) as u64);
    let changes = store.replay(since, SAMPLE_SIZE).await?;
    let objects = changes.into_iter().filter_map(|change| match change {
        ReplayedChange::Put(object) => Some(object),
        ReplayedChange::Deleted { .. } => None,
    });
    Ok(objects.collect())
}

/// The first field by which the index does not find an object; `object` if it does not contain it at all.
async fn find_missing_field(
    engine: &dyn Engine,
    context: &SearchContext,
    object: &Object,
) -> Result<Option<String>, Error> {
    let document = Document::from_object(object)?;
    let identity = Match::Ids(Arc::new([document.id].into()));
    let parts = conditions(&document);
    let all = std::iter::once(identity.clone()).chain(parts.iter().map(|(_, part)| part.clone())).collect();
    if has_match(engine, context, &Match::And(all)).await? {
        return Ok(None);
    }
    if !has_match(engine, context, &identity).await? {
        return Ok(Some("object".to_owned()));
    }
    for (field, part) in parts {
        if !has_match(engine, context, &identity.clone().and(part)).await? {
            return Ok(Some(field));
        }
    }
    Ok(None)
}

async fn has_match(engine: &dyn Engine, context: &SearchContext, matches: &Match) -> Result<bool, Error> {
    let found = engine.ids(context, matches).await?;
    if found.incomplete {
        let reason = found.notices.into_iter().next().unwrap_or_else(|| "a limit was reached".to_owned());
        return Err(Error::text("cannot be compared", reason));
    }
    Ok(!found.values.is_empty())
}

/// A condition for each value by which an object can be found, with its field.
fn conditions(document: &Document) -> Vec<(String, Match)> {
    let exact = |keyword: Keyword| {
        matches!(keyword, Keyword::Kind | Keyword::Name | Keyword::Namespace | Keyword::Cluster | Keyword::Status)
    };
    let keywords = document.keywords.iter().filter(|(keyword, _)| exact(*keyword));
    let keywords = keywords.map(|(keyword, value)| (keyword.name().to_owned(), Match::Exact(*keyword, value.clone())));
    let number = |(number, value): &(Number, i64)| {
        (number.name().to_owned(), Match::Number(*number, Some(*value), Some(*value)))
    };
    let keys =
        document.keys.iter().map(|(key, value)| ("a relation".to_owned(), Match::keys(&[*key], [*value].into())));
    keywords.chain(document.numbers.iter().map(number)).chain(keys).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn counts(counts: &[(&str, &str, u64)]) -> Counts {
        counts.iter().map(|(cluster, kind, count)| ((cluster.to_string(), kind.to_string()), *count)).collect()
    }

    #[rstest]
    #[case::equal(&[("m1", "Pod", 3)], &[("m1", "Pod", 3)], &[])]
    #[case::fewer(&[("m1", "Pod", 3)], &[("m1", "Pod", 2)], &[("m1", "Pod", 3, 2)])]
    #[case::none(&[("m1", "Pod", 3)], &[], &[("m1", "Pod", 3, 0)])]
    #[case::left_over(&[], &[("", "", 7)], &[("", "", 0, 7)])]
    #[case::another_cluster(&[("m1", "Pod", 3)], &[("m2", "Pod", 3)], &[("m1", "Pod", 3, 0), ("m2", "Pod", 0, 3)])]
    fn counts_are_compared(
        #[case] stored: &[(&str, &str, u64)],
        #[case] indexed: &[(&str, &str, u64)],
        #[case] expected: &[(&str, &str, u64, u64)],
    ) {
        let found = differences(&counts(stored), &counts(indexed));
        let found: Vec<_> =
            found.iter().map(|((cluster, kind), (a, b))| (cluster.as_str(), kind.as_str(), *a, *b)).collect();
        assert_eq!(found, expected);
    }
}
