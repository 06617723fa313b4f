//! Warms up merged segments before searches use them: evaluates the filters and permissions that were repeatedly
//! used on their parts.

use crate::authorization::Rights;
use crate::plan::predicate::Match;
use crate::tantivy::reader::doc_sets::PreparedQuery;
use crate::tantivy::reader::facet_counts::FacetCounter;
use crate::tantivy::reader::permitted::permitted;
use crate::tantivy::segments::{PartsId, Segment, Snapshot};
use crate::tantivy::terms::{FilterKey, TermPredicate};
use crate::tantivy::{Prepare, TextIndex};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tantivy::index::SegmentId;

/// Time limit, because changes are delayed meanwhile; the rest is evaluated by the next search.
const WITHIN: Duration = Duration::from_millis(300);
/// Maximum number of recently used filters.
const MOST_ASKED: usize = 500;

/// Warms up snapshots for callers with these permissions.
pub(crate) fn prepare(rights: Arc<Rights>) -> Box<Prepare> {
    Box::new(move |text, before, next| prepared(text, &rights, before, next))
}

fn prepared(text: &TextIndex, rights: &Arc<Rights>, before: &Snapshot, next: &Snapshot) {
    let ids = |snapshot: &Snapshot| -> HashSet<PartsId> {
        snapshot.segments.iter().map(|segment| segment.parts.id()).collect()
    };
    let (known, left) = (ids(before), ids(next));
    let gone: HashSet<PartsId> = known.difference(&left).copied().collect();
    if gone.is_empty() {
        return;
    }
    // Renumbering values does not affect the terms of a segment.
    let there: HashSet<SegmentId> = left.iter().map(|(segment, _)| *segment).collect();
    let segments = gone.iter().map(|(segment, _)| *segment).filter(|segment| !there.contains(segment));
    let (callers, mut filters) = (text.permitted.forget(rights, &gone), text.filters.forget(&segments.collect()));
    filters.truncate(MOST_ASKED);
    let deadline = Instant::now() + WITHIN;
    let mut new: Vec<&Segment> = next.segments.iter().filter(|segment| !known.contains(&segment.parts.id())).collect();
    // Largest segments first, because they take the most time.
    new.sort_by_key(|segment| std::cmp::Reverse(segment.parts.max_doc()));
    // Permissions first, because every search needs them.
    for (caller, facets) in callers {
        let caller = Mutex::new(caller);
        for segment in &new {
            let may_read = permitted(&segment.parts, &next.values, &caller, &text.permitted);
            let tallying = FacetCounter {
                segment,
                values: &next.values,
                facets: &facets,
                rights: &caller,
                memory: &text.permitted,
                deadline,
            };
            if tallying.of_permitted(&may_read).is_none() {
                return;
            }
        }
    }
    let pattern = |filter: &FilterKey| {
        if let FilterKey::Terms(_, TermPredicate::Matches(pattern)) = filter { Some(pattern.clone()) } else { None }
    };
    let nothing = Match::None;
    let question = PreparedQuery::with(&nothing, filters.iter().filter_map(pattern).collect(), text, deadline);
    for filter in filters {
        for segment in &new {
            // An error is returned to the next search that uses the filter.
            if question.look_up(&segment.parts, filter.clone()).is_err() && Instant::now() > deadline {
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
    use crate::engine::SearchContext;
    use crate::tantivy::reader::collector::top_hits;
    use crate::tantivy::terms::EvaluationError;
    use crowsnest_apimachinery::user::UserInfo;
    use crowsnest_store::fixtures::stored;
    use crowsnest_store::record::ChangeKind;
    use serde_json::json;
    use tantivy::IndexWriter;

    /// A user who may list pods in one of two namespaces.
    fn reader() -> Arc<Rights> {
        let rights = Arc::new(Rights::default());
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
            rights.apply(&object.record, &object.body, ChangeKind::Added);
        }
        rights
    }

    #[test]
    fn filters_of_merged_segments_are_cached_for_the_new_one() {
        let (text, rights) = (TextIndex::in_memory().unwrap(), reader());
        let prepare = prepare(Arc::clone(&rights));
        let mut writer: IndexWriter = text.writer(15_000_000).unwrap();
        writer.set_merge_policy(Box::new(tantivy::indexer::NoMergePolicy));
        for id in 1..=40_u64 {
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("pod-{id}"),
                "namespace": format!("team-{}", id % 2)}, "spec": {"nodeName": format!("node-{}", id % 4)}});
            let document = Document::of(&stored("member1", id, &pod)).unwrap();
            writer.add_document(document.to_tantivy(&text.columns)).unwrap();
            if id % 20 == 0 {
                writer.commit().unwrap();
            }
        }
        text.reload(crowsnest_store::Seq(0), &*prepare).unwrap();
        let ann = || Arc::new(Mutex::new(rights.of(&UserInfo::new("ann", ["staff"]))));
        let matches = Match::Or(vec![Match::Bare("node-3".to_owned()), Match::BareRegex("pod-[12]".to_owned())]);
        let gathered = || {
            let request = TopHitsRequest { keep: 5, facets: vec![Facet::Node], ..TopHitsRequest::total() };
            let (requested_at, rights) = (Instant::now(), ann());
            let deadline = requested_at + Duration::from_secs(60);
            top_hits(&text, &SearchContext { rights, requested_at, deadline }, &matches, &request).unwrap()
        };
        let before = gathered();
        assert_eq!(gathered(), before);
        assert_eq!(before.total, 11, "every other one, and pod-1");
        let parts =
            text.snapshot().segments.iter().map(|segment| segment.parts.reader.segment_id()).collect::<Vec<_>>();
        writer.merge(&parts).wait().unwrap();
        text.reload(crowsnest_store::Seq(0), &*prepare).unwrap();

        let snapshot = text.snapshot();
        assert_eq!(snapshot.segments.len(), 1);
        let (whole, caller) = (&snapshot.segments[0], ann());
        assert!(text.permitted.get(&caller.lock(), whole.parts.id()).is_some());
        // The deadline has passed, so results must come from the cache.
        let ask = |matches: &Match| {
            let question = PreparedQuery::new(matches, &text, Instant::now() - Duration::from_secs(1));
            question.ask(whole, &snapshot.values, &caller)
        };
        let docs = ask(&matches).unwrap().docs;
        assert_eq!(docs.len(whole.parts.max_doc()), before.total);
        assert!(matches!(ask(&Match::Bare("node-2".to_owned())), Err(EvaluationError::Late)));
        assert_eq!(gathered(), before);
        assert!(text.filters.forget(&parts.into_iter().collect()).is_empty(), "removed segments are evicted");
        assert!(text.permitted.get(&rights.of(&UserInfo::new("eve", ["staff"])), whole.parts.id()).is_none());
    }
}
