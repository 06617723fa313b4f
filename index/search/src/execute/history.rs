//! Searches the history: deleted objects, the fleet at an earlier time, and changed fields.
//!
//! Earlier versions are not in the text index, because the store limits their total size and they are few compared to the
//! objects. They are read from the store, those that ended last first, and evaluated directly.

use crate::authorization::CallerPermissions;
use crate::authorization::decision::allows_read;
use crate::collect::terms::{HistoryTermCounts, HistoryTerms, TermsRequest};
use crate::collect::{TopHits, TopHitsRequest};
use crate::document::Document;
use crate::document::columns::{Facet, Keyword};
use crate::execute::Sources;
use crate::execute::evaluate::DocumentEvaluator;
use crate::execute::examine::{EXAMINE_BATCH, MAX_EXAMINED};
use crate::plan::predicate::{Match, Test};
use crate::plan::sort::{Rank, RankedHit, Sort, SortBy, SortPosition, compare};
use crate::plan::{PlanningContext, TimeScope};
use crowsnest_store::{BodyMode, VersionExclusions, VersionFilter};
use crowsnest_store::{CollectionKey, Error, Object, Seq, Version};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of versions of an object that are compared.
const MAX_COMPARED_VERSIONS: usize = 100;
/// Metadata fields that are ignored, because they change with every update.
const IGNORED_FIELDS: [&str; 2] = ["metadata.resourceVersion", "metadata.managedFields"];

/// The versions that a time scope covers. Converts its seconds to milliseconds.
fn version_filter(time_scope: TimeScope) -> VersionFilter {
    let all = VersionFilter { only_deleted: false, ..VersionFilter::DELETED };
    let ms = |seconds: i64| seconds.saturating_mul(1000);
    match time_scope {
        TimeScope::Now | TimeScope::Deleted => VersionFilter::DELETED,
        TimeScope::At(at) => VersionFilter { from: ms(at.saturating_add(1)), until: ms(at.saturating_add(1)), ..all },
        TimeScope::During(from, until) => {
            VersionFilter { from: ms(from).saturating_add(1), until: ms(until.saturating_add(1)), ..all }
        }
    }
}

/// An earlier version that matched.
struct MatchedVersion {
    /// Record id of the object.
    id: u64,
    /// The change that ended the version.
    ended: Seq,
    score: f32,
    document: Document,
}

/// Hits among earlier versions, at most one per object.
pub(crate) struct HistoryResults {
    pub top: TopHits,
    /// For each terms request, the terms of these versions.
    pub terms: HistoryTerms,
    /// Record ids that the search of current objects must exclude: those of the hits; for a period, only those of deleted
    /// objects, which the text index may still contain.
    pub ids: BTreeSet<u64>,
    /// True if some versions were not evaluated.
    pub is_truncated: bool,
}

/// Searches earlier versions. For a period, objects whose current state matches `current_matches` are excluded.
pub(crate) async fn search_history(
    sources: &Sources,
    time_scope: TimeScope,
    matches: &Match,
    current_matches: &Match,
    request: &TopHitsRequest,
    terms_requests: &[TermsRequest],
) -> Result<HistoryResults, Error> {
    let matches = Arc::new(matches.clone());
    let is_period = matches!(time_scope, TimeScope::During(..));
    let (mut seen, mut deleted) = (BTreeSet::new(), BTreeSet::new());
    let mut all = TopHits { facets: vec![Vec::new(); request.facets.len()], ..TopHits::default() };
    let mut terms: HistoryTerms =
        terms_requests.iter().map(|terms_request| (terms_request.clone(), HistoryTermCounts::default())).collect();
    let mut reader = HistoryReader::new(sources, version_filter(time_scope), &matches);
    while let Some(versions) = reader.next_batch().await? {
        let (permissions, conditions) = (Arc::clone(&sources.context.permissions), Arc::clone(&matches));
        let deadline = sources.context.deadline;
        // For a deleted object, the newest version is the deletion and comes first.
        deleted.extend(versions.iter().filter(|version| version.deleted).map(|version| version.object.record.id));
        let mut matched = sources
            .permits
            .run(Instant::now(), move || filter_matching(&versions, &permissions, &conditions, deadline))
            .await?;
        matched.retain(|version| seen.insert(version.id));
        if is_period {
            let current_ids = matched.iter().map(|version| version.id).filter(|id| !deleted.contains(id));
            let (current, is_truncated) =
                filter_current_matches(sources, current_matches, current_ids.collect()).await?;
            reader.is_truncated |= is_truncated;
            matched.retain(|version| !current.contains(&version.id));
        }
        for (terms_request, counts) in &mut terms {
            matched.iter().for_each(|version| counts.add_document(&version.document, terms_request));
        }
        let facets = count_facets(&matched, &request.facets);
        let sums =
            request.sums.as_ref().map(|sums| sums.sum_documents(matched.iter().map(|version| &version.document)));
        let part = TopHits { facets, sums: sums.unwrap_or_default(), ..rank_versions(matched, request) };
        let before = std::mem::take(&mut all);
        all = request.merge([before, part]);
    }
    if is_period {
        seen.retain(|id| deleted.contains(id));
    }
    Ok(HistoryResults { top: all, terms, ids: seen, is_truncated: reader.is_truncated })
}

/// The value that a column must have for a match; None if other values may match as well.
fn required_value(matches: &Match, column: Keyword) -> Option<&str> {
    match matches {
        Match::Keyword(keyword, Test::Equals(value)) if *keyword == column => Some(value),
        Match::And(parts) => parts.iter().find_map(|part| required_value(part, column)),
        _ => None,
    }
}

/// Reads earlier versions, those that ended last first, in the namespaces of each cluster in which the caller may read
/// objects.
struct HistoryReader<'s> {
    sources: &'s Sources,
    filter: VersionFilter,
    exclusions: VersionExclusions,
    versions_read: usize,
    /// True if reading stopped before the end.
    is_truncated: bool,
}

impl<'s> HistoryReader<'s> {
    /// Restricts the reader to a cluster or to events if the query requires them, because there are many earlier
    /// versions.
    fn new(sources: &'s Sources, filter: VersionFilter, matches: &Match) -> Self {
        let mut permissions = sources.context.permissions.lock();
        let (cluster, events) =
            (required_value(matches, Keyword::Cluster), required_value(matches, Keyword::Kind) == Some("event"));
        let mut limit = |key: &CollectionKey| {
            let is_other_cluster = cluster.is_some_and(|cluster| cluster != key.cluster.as_str());
            match is_other_cluster || (events && &*key.resource.resource != "events") {
                true => Some(BTreeSet::new()),
                false => permissions.namespace_limit(&key.cluster, &key.resource.group, &key.resource.resource),
            }
        };
        let exclusions = sources.store.exclusions(&mut limit);
        Self { sources, filter, exclusions, versions_read: 0, is_truncated: false }
    }

    /// The next versions; None at the end, at the limit, or after the deadline.
    async fn next_batch(&mut self) -> Result<Option<Vec<Version>>, Error> {
        if self.versions_read >= MAX_EXAMINED || Instant::now() > self.sources.context.deadline {
            self.is_truncated = true;
            return Ok(None);
        }
        let versions = self.sources.store.versions_in(&self.filter, &self.exclusions, EXAMINE_BATCH).await?;
        let Some(last) = versions.last() else { return Ok(None) };
        self.filter.before = last.ended;
        self.versions_read += versions.len();
        Ok(Some(versions))
    }
}

/// The objects among `ids` that match in their current state, and whether some were not checked.
async fn filter_current_matches(
    sources: &Sources,
    current_matches: &Match,
    ids: BTreeSet<u64>,
) -> Result<(BTreeSet<u64>, bool), Error> {
    if ids.is_empty() {
        return Ok((ids, false));
    }
    let matches = current_matches.clone().and(Match::Ids(Arc::new(ids)));
    let lookup = sources.engine.ids(&sources.context, &matches).await?;
    Ok((lookup.values, lookup.incomplete))
}

fn filter_matching(
    versions: &[Version],
    permissions: &Mutex<CallerPermissions>,
    matches: &Match,
    deadline: Instant,
) -> Result<Vec<MatchedVersion>, Error> {
    let mut matched = Vec::new();
    // After the deadline, the reader stops and reports an incomplete result.
    for version in versions.iter().take_while(|_| Instant::now() <= deadline) {
        let document = Document::from_version(version)?;
        let scope = document.facets.iter().find(|(facet, _)| *facet == Facet::Scope).map(|(_, scope)| scope.as_str());
        if !allows_read(
            &mut permissions.lock(),
            crowsnest_apimachinery::rbac::ReadKind::Listing,
            scope.unwrap_or_default(),
            &version.object.record.key.name,
        ) {
            continue;
        }
        let mut evaluator = DocumentEvaluator::new(&document);
        if evaluator.is_match(matches) {
            let score = evaluator.score(matches);
            matched.push(MatchedVersion { id: document.id, ended: version.ended, score, document });
        }
    }
    Ok(matched)
}

fn rank(sort: &Sort, version: &MatchedVersion, planning_context: &PlanningContext) -> Rank {
    let text = |facet: Facet| {
        version.document.facets.iter().find(|(column, _)| *column == facet).map(|(_, value)| value.as_str())
    };
    match sort.by {
        SortBy::Relevance => Rank::Score(version.score),
        SortBy::Number(number) => {
            Rank::Number(version.document.numbers.iter().find(|(column, _)| *column == number).map(|(_, value)| *value))
        }
        SortBy::Text(facet) => Rank::Text(text(facet).map(str::to_owned)),
        SortBy::Cluster(property) => {
            let cluster = text(Facet::Cluster)
                .and_then(|name| planning_context.clusters.iter().find(|properties| properties.name == name));
            Rank::Text(cluster.and_then(|cluster| property.value_of(cluster)).map(str::to_owned))
        }
    }
}

fn rank_versions(versions: Vec<MatchedVersion>, request: &TopHitsRequest) -> TopHits {
    let total = versions.len() as u64;
    let hit = |version: &MatchedVersion| {
        let ranks = request.sort.iter().map(|sort| rank(sort, version, &request.planning_context)).collect();
        let name =
            version.document.facets.iter().find(|(facet, _)| *facet == Facet::Name).map(|(_, name)| name.clone());
        let position = SortPosition { ranks, name: name.unwrap_or_default(), id: version.id };
        RankedHit { position, score: version.score, ended_by: Some(version.ended) }
    };
    let mut hits: Vec<RankedHit> = versions.iter().map(hit).collect();
    if let Some(after) = &request.after {
        hits.retain(|hit| compare(&hit.position, after, &request.sort).is_gt());
    }
    TopHits { remaining: hits.len() as u64, hits, total, ..TopHits::default() }
}

fn count_facets(versions: &[MatchedVersion], facets: &[Facet]) -> Vec<Vec<(Arc<str>, u64)>> {
    let count = |facet: &Facet| {
        let mut counts: HashMap<Arc<str>, u64> = HashMap::new();
        let values = versions.iter().flat_map(|version| &version.document.facets).filter(|(column, _)| column == facet);
        values.for_each(|(_, value)| *counts.entry(Arc::from(value.as_str())).or_default() += 1);
        counts.into_iter().collect()
    };
    facets.iter().map(count).collect()
}

/// Ids of the current objects whose history contains a change at a path or below it, and true if some objects were not
/// checked.
/// Versions are compared object by object, to limit the memory that they need.
pub(crate) async fn find_changed(sources: &Sources, path: &str) -> Result<(BTreeSet<u64>, bool), Error> {
    let Some(path) = PathComparison::new(path).map(Arc::new) else { return Ok((BTreeSet::new(), false)) };
    let (mut ids, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut reader =
        HistoryReader::new(sources, VersionFilter { only_deleted: false, ..VersionFilter::DELETED }, &Match::All);
    while let Some(versions) = reader.next_batch().await? {
        let new = versions.iter().map(|version| version.object.record.id).filter(|id| seen.insert(*id));
        // The store returns only current objects, so deleted ones are skipped.
        for object in sources.store.by_ids(&new.collect::<Vec<_>>(), BodyMode::Read).await? {
            if Instant::now() > sources.context.deadline {
                return Ok((ids, true));
            }
            let before = sources.store.versions(&object.record.key, MAX_COMPARED_VERSIONS).await?;
            let (id, path) = (object.record.id, Arc::clone(&path));
            if sources.permits.run(Instant::now(), move || path.has_changed(&object, &before)).await? {
                ids.insert(id);
            }
        }
    }
    Ok((ids, reader.is_truncated))
}

/// Compares two states of an object at a path.
pub(crate) struct PathComparison {
    /// Field names and globs; None for any field.
    steps: Vec<Option<String>>,
}

impl PathComparison {
    /// Parses a dotted path; None if the path or one of its steps is empty.
    pub fn new(path: &str) -> Option<Self> {
        let step = |step: &str| (step != "*").then(|| step.to_owned());
        let mut steps: Vec<Option<String>> = path.split('.').map(step).collect();
        // Trailing globs are implied.
        while steps.last() == Some(&None) && steps.len() > 1 {
            steps.pop();
        }
        (!path.is_empty() && steps.iter().flatten().all(|step| !step.is_empty())).then_some(Self { steps })
    }

    /// True if the value differs between two successive states of the object: its current state and `versions`, newest first.
    fn has_changed(&self, object: &Object, versions: &[Version]) -> Result<bool, Error> {
        let mut after: Value = object.parse()?;
        for version in versions.iter().filter(|version| version.object.record.id == object.record.id) {
            let before: Value = version.object.parse()?;
            if self.differs(&before, &after) {
                return Ok(true);
            }
            after = before;
        }
        Ok(false)
    }

    pub fn differs(&self, before: &Value, after: &Value) -> bool {
        let states = FieldStates { before: Some(before), after: Some(after) };
        differs(states, &self.steps, &mut Vec::new())
    }
}

/// A field before and after a change; None: the field does not exist.
#[derive(Clone, Copy)]
struct FieldStates<'v> {
    before: Option<&'v Value>,
    after: Option<&'v Value>,
}

fn differs<'v>(states: FieldStates<'v>, steps: &[Option<String>], path: &mut Vec<&'v str>) -> bool {
    let FieldStates { before, after } = states;
    if before == after || IGNORED_FIELDS.contains(&path.join(".").as_str()) {
        return false;
    }
    let [step, rest @ ..] = steps else {
        return match (before, after) {
            // The fields of metadata are compared one by one, so that [`IGNORED_FIELDS`] are skipped.
            (Some(Value::Object(before_fields)), Some(Value::Object(after_fields))) if path.len() < 2 => {
                let names: BTreeSet<&String> = before_fields.keys().chain(after_fields.keys()).collect();
                names.into_iter().any(|name| {
                    let states = FieldStates { before: before_fields.get(name), after: after_fields.get(name) };
                    field_differs(states, name, &[], path)
                })
            }
            _ => true,
        };
    };
    let fields = |value: Option<&'v Value>| value.and_then(Value::as_object);
    let (before_fields, after_fields) = (fields(before), fields(after));
    match (before_fields, after_fields, step) {
        (None, None, _) => list_differs(states, steps, path),
        (_, _, Some(name)) if !name.contains(['*', '?']) => {
            let value = |fields: Option<&'v serde_json::Map<String, Value>>| {
                fields.and_then(|fields| fields.get_key_value(name))
            };
            let (before_field, after_field) = (value(before_fields), value(after_fields));
            let Some((name, _)) = before_field.or(after_field) else { return false };
            let states =
                FieldStates { before: before_field.map(|field| field.1), after: after_field.map(|field| field.1) };
            field_differs(states, name, rest, path)
        }
        (before_fields, after_fields, step) => {
            let regex = step
                .as_deref()
                .and_then(|glob| crate::plan::patterns::compile(&crate::plan::patterns::glob_regex(glob, ".")));
            let names: BTreeSet<&String> =
                before_fields.into_iter().chain(after_fields).flat_map(|fields| fields.keys()).collect();
            let passes = |name: &str| regex.as_ref().is_none_or(|regex| regex.is_match(&name.to_lowercase()));
            names.into_iter().filter(|name| passes(name)).any(|name| {
                let value = |fields: Option<&'v serde_json::Map<String, Value>>| fields.and_then(|f| f.get(name));
                let states = FieldStates { before: value(before_fields), after: value(after_fields) };
                field_differs(states, name, rest, path)
            })
        }
    }
}

fn field_differs<'v>(states: FieldStates<'v>, name: &'v str, rest: &[Option<String>], path: &mut Vec<&'v str>) -> bool {
    path.push(name);
    let has_changed = differs(states, rest, path);
    path.pop();
    has_changed
}

/// Compares lists item by item.
fn list_differs<'v>(states: FieldStates<'v>, steps: &[Option<String>], path: &mut Vec<&'v str>) -> bool {
    let list = |value: Option<&'v Value>| value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let (before_items, after_items) = (list(states.before), list(states.after));
    (0..before_items.len().max(after_items.len())).any(|nth| {
        let items = FieldStates { before: before_items.get(nth), after: after_items.get(nth) };
        differs(items, steps, path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[test]
    fn reading_is_restricted_by_cluster_and_kind() {
        let kind = Match::Keyword(Keyword::Kind, Test::Equals("event".to_owned()));
        let pod = Match::Keyword(Keyword::Kind, Test::Equals("pod".to_owned()));
        let both = Match::Or(vec![kind.clone(), pod.clone()]);
        let number = Match::Number(crate::document::columns::Number::Count, Some(1), None);
        assert_eq!(required_value(&number.clone().and(kind.clone()).and(number.clone()), Keyword::Kind), Some("event"));
        assert_eq!(required_value(&number.and(both), Keyword::Kind), None);
        assert_eq!(
            (required_value(&kind.clone().negated(), Keyword::Kind), required_value(&kind, Keyword::Cluster)),
            (None, None)
        );
    }

    #[rstest]
    #[case("spec.replicas", true)]
    #[case("spec", true)]
    #[case("spec.*", true)]
    #[case("*", true)]
    #[case("spec.template", false)]
    #[case("spec.repl*", true)]
    #[case("spec.containers.image", true)]
    #[case("spec.containers.name", false)]
    #[case("metadata", false)]
    #[case("metadata.*", false)]
    #[case("metadata.resourceVersion", false)]
    #[case("status", true)]
    #[case("status.none", false)]
    fn changed_fields_are_detected(#[case] path: &str, #[case] expected: bool) {
        let before = json!({"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"replicas": 1, "template": {"a": 1},
            "containers": [{"name": "a", "image": "x:1"}]}});
        let after = json!({"metadata": {"name": "a", "resourceVersion": "2"}, "spec": {"replicas": 2, "template": {"a": 1},
            "containers": [{"name": "a", "image": "x:2"}]}, "status": {"ready": 1}});
        assert_eq!(PathComparison::new(path).unwrap().differs(&before, &after), expected, "{path}");
        assert!(!PathComparison::new(path).unwrap().differs(&after, &after));
    }
}
