//! Warms up merged segments before searches use them: evaluates the filters and permissions that searches repeatedly
//! used on the segments that were merged, and creates the filters of numbers that these segments had.

use crate::authorization::RbacRules;
use crate::engine::SearchContext;
use crate::plan::predicate::Match;
use crate::tantivy::reader::doc_sets::PreparedQuery;
use crate::tantivy::reader::facet_counts::FacetCounter;
use crate::tantivy::reader::permitted::resolve_permitted;
use crate::tantivy::segments::{Segment, SegmentDataId, Snapshot};
use crate::tantivy::terms::{FilterKey, TermPredicate};
use crate::tantivy::{TextIndex, WarmUp};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tantivy::index::SegmentId;

/// Time limit of a warm-up, because it delays the publication of changes. The next search evaluates the rest.
const TIME_LIMIT: Duration = Duration::from_millis(300);
/// Maximum number of filters to evaluate, most recently used first.
const MAX_FILTERS: usize = 500;

/// Returns a function that warms up snapshots, with the callers' permissions according to `rbac_rules`.
pub(crate) fn with_rules(rbac_rules: Arc<RbacRules>) -> Box<WarmUp> {
    Box::new(move |text, before, next| warm_up(text, &rbac_rules, before, next))
}

fn warm_up(text: &TextIndex, rbac_rules: &Arc<RbacRules>, before: &Snapshot, next: &Snapshot) {
    let ids = |snapshot: &Snapshot| -> HashSet<SegmentDataId> {
        snapshot.segments.iter().map(|segment| segment.data.id()).collect()
    };
    let (ids_before, next_ids) = (ids(before), ids(next));
    let removed: HashSet<SegmentDataId> = ids_before.difference(&next_ids).copied().collect();
    if removed.is_empty() {
        return;
    }
    // Cached filters stay valid if only the values of a segment were renumbered.
    let remaining: HashSet<SegmentId> = next_ids.iter().map(|(segment, _)| *segment).collect();
    let merged = removed.iter().map(|(segment, _)| *segment).filter(|segment| !remaining.contains(segment));
    let columns = text.number_filters.columns_of_other_segments(&remaining);
    let (callers, mut filters) = (text.permitted.evict(rbac_rules, &removed), text.filters.evict(&merged.collect()));
    filters.truncate(MAX_FILTERS);
    let started_at = Instant::now();
    let deadline = started_at + TIME_LIMIT;
    let mut new: Vec<&Segment> =
        next.segments.iter().filter(|segment| !ids_before.contains(&segment.data.id())).collect();
    // Largest segments first, because they take the most time.
    new.sort_by_key(|segment| std::cmp::Reverse(segment.data.max_doc()));
    // Permissions first, because every search needs them.
    for (caller, facets) in callers {
        let context = SearchContext::new(caller, started_at, TIME_LIMIT);
        for segment in &new {
            let permitted = resolve_permitted(&segment.data, &next.values, &context.permissions, &text.permitted);
            let counter = FacetCounter {
                segment,
                values: &next.values,
                facets: &facets,
                context: &context,
                cache: &text.permitted,
            };
            if counter.count_permitted(&permitted).is_none() {
                return;
            }
        }
    }
    for column in columns {
        for segment in &new {
            // The next search for numbers in the column creates the filter again and returns the error.
            let _ = text.number_filters.get(&segment.data.reader, column);
            if Instant::now() > deadline {
                return;
            }
        }
    }
    let pattern = |filter: &FilterKey| {
        if let FilterKey::Terms(_, TermPredicate::Matches(pattern)) = filter { Some(pattern.clone()) } else { None }
    };
    let nothing = Match::None;
    let query = PreparedQuery::with_patterns(&nothing, filters.iter().filter_map(pattern).collect(), text, deadline);
    for filter in filters {
        for segment in &new {
            // The next search that uses the filter evaluates it again and returns the error.
            if query.cache_filter(&segment.data, filter.clone()).is_err() && Instant::now() > deadline {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::TopHitsRequest;
    use crate::document::Document;
    use crate::document::columns::Facet;
    use crate::tantivy::reader::collector::top_hits;
    use crate::tantivy::terms::EvaluationError;
    use crowsnest_apimachinery::user::UserInfo;
    use crowsnest_store::fixtures::stored;
    use crowsnest_store::record::ChangeKind;
    use parking_lot::Mutex;
    use serde_json::json;
    use std::collections::BTreeSet;
    use tantivy::IndexWriter;

    /// Rules by which the user ann may list pods in one of two namespaces.
    fn reader_rules() -> Arc<RbacRules> {
        let rbac_rules = Arc::new(RbacRules::default());
        let object = |kind: &str, rest: serde_json::Value| {
            let mut object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
                "metadata": {"namespace": "team-1", "name": "reader"}});
            object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            stored("member1", 1, &object)
        };
        let rules = json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}]);
        let subjects = json!([{"kind": "User", "name": "ann"}]);
        for object in [
            object("Role", json!({"rules": rules})),
            object("RoleBinding", json!({"roleRef": {"kind": "Role", "name": "reader"}, "subjects": subjects})),
        ] {
            rbac_rules.apply(&object.record, &object.body, ChangeKind::Added);
        }
        rbac_rules
    }

    #[test]
    fn filters_of_merged_segments_are_cached_for_the_new_one() {
        let (text, rbac_rules) = (TextIndex::in_memory().unwrap(), reader_rules());
        let warm_up = with_rules(Arc::clone(&rbac_rules));
        let mut writer: IndexWriter = text.writer(15_000_000).unwrap();
        writer.set_merge_policy(Box::new(tantivy::indexer::NoMergePolicy));
        for id in 1..=40_u64 {
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("pod-{id}"),
                "namespace": format!("team-{}", id % 2)}, "spec": {"nodeName": format!("node-{}", id % 4)}});
            let document = Document::from_object(&stored("member1", id, &pod)).unwrap();
            writer.add_document(document.to_tantivy(&text.columns)).unwrap();
            if id % 20 == 0 {
                writer.commit().unwrap();
            }
        }
        text.reload(crowsnest_store::Seq(0), &*warm_up).unwrap();
        let ann = || rbac_rules.for_caller(&UserInfo::new("ann", ["staff"]));
        let matches = Match::Or(vec![Match::Bare("node-3".to_owned()), Match::BareRegex("pod-[12]".to_owned())]);
        let search = || {
            let request = TopHitsRequest { max_hits: 5, facets: vec![Facet::Node], ..TopHitsRequest::total_only() };
            let context = SearchContext::new(ann(), Instant::now(), Duration::from_secs(60));
            top_hits(&text, &context, &matches, &request).unwrap()
        };
        let before = search();
        assert_eq!(search(), before);
        assert_eq!(before.total, 11, "every other one, and pod-1");
        let filter_of = |segment: &Segment| text.number_filters.get(&segment.data.reader, text.columns.id).unwrap();
        let filter = filter_of(&text.snapshot().segments[0]).unwrap();
        let segments =
            text.snapshot().segments.iter().map(|segment| segment.data.reader.segment_id()).collect::<Vec<_>>();
        writer.merge(&segments).wait().unwrap();
        let warm_up_with_searches = move |text: &TextIndex, before: &Snapshot, next: &Snapshot| {
            warm_up(text, before, next);
            let filter_after = text.number_filters.get(&before.segments[0].data.reader, text.columns.id).unwrap();
            assert!(Arc::ptr_eq(&filter, &filter_after.unwrap()), "searches still use the previous snapshot");
        };
        text.reload(crowsnest_store::Seq(0), &warm_up_with_searches).unwrap();

        let snapshot = text.snapshot();
        assert_eq!(snapshot.segments.len(), 1);
        let (merged, caller) = (&snapshot.segments[0], Mutex::new(ann()));
        assert!(text.permitted.get(&caller.lock(), merged.data.id()).is_some());
        let only_merged = HashSet::from([merged.data.reader.segment_id()]);
        assert_eq!(text.number_filters.columns_of_other_segments(&HashSet::new()), BTreeSet::from([text.columns.id]));
        assert_eq!(text.number_filters.columns_of_other_segments(&only_merged), BTreeSet::new());
        // The deadline has passed, so results must come from the cache.
        let evaluate = |matches: &Match| {
            let query = PreparedQuery::new(matches, &text, Instant::now() - Duration::from_secs(1));
            query.evaluate(merged, &snapshot.values, &caller)
        };
        let docs = evaluate(&matches).unwrap().docs;
        assert_eq!(docs.len(merged.data.max_doc()), before.total);
        assert!(matches!(evaluate(&Match::Bare("node-2".to_owned())), Err(EvaluationError::DeadlineExceeded)));
        assert_eq!(search(), before);
        assert!(text.filters.evict(&segments.into_iter().collect()).is_empty(), "removed segments are evicted");
        assert!(
            text.permitted.get(&rbac_rules.for_caller(&UserInfo::new("eve", ["staff"])), merged.data.id()).is_none()
        );
    }
}
