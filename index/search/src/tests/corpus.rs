//! The golden corpus (`tests/fixtures/corpus`): objects with their history, and queries with their expected hits,
//! executed on a store and a text index.

use crate::authorization::RbacRules;
use crate::collect::TopHitsRequest;
use crate::collect::facets::{FacetField, FacetRequest};
use crate::collect::suggest::{ValueSuggester, ValueSuggestions};
use crate::collect::sums::amounts;
use crate::document::Document;
use crate::document::columns::Facet;
use crate::engine::{Engine, SearchContext};
use crate::execute::evaluate::DocumentEvaluator;
use crate::execute::permits::SearchPermits;
use crate::execute::{SearchResults, Sources, begin_scan, find_with_terms};
use crate::plan::relations::resolve;
use crate::plan::sort::RankedHit;
use crate::plan::{ClusterProperties, GroupKind, KindsByName, PlanningContext, TimeScope, plan};
use crate::tantivy::TextIndex;
use crate::tantivy::engine::TantivyEngine;
use crate::tests::ReadableDocuments;
use crate::tests::groups::{Sums, sums_by_group, values};
use crate::{resolve_group, resolve_sort};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_query::{Field, Limits, find_field, parse};
use crowsnest_store::codec::Codec;
use crowsnest_store::fixtures::{cluster, draft, resource_of, stored};
use crowsnest_store::record::{ChangeKind, Version};
use crowsnest_store::sqlite::SqliteStore;
use crowsnest_store::{
    Batch, BodyMode, Progress, RecordWrite, ReplayedChange, Store, VersionExclusions, VersionFilter,
};
use crowsnest_store::{CacheOptions, CollectionKey, Epoch, Object, RecordKey, Seq};
use futures::executor::block_on;
use parking_lot::Mutex;
use rstest::rstest;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

const NOW: i64 = 1_790_000_000;
/// Default time of entries.
const BEGIN: &str = "2026-09-20T00:00:00Z";

#[derive(Deserialize)]
struct Entry {
    cluster: String,
    at: Option<String>,
    object: Option<Value>,
    deleted: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QueryCase {
    query: String,
    hits: Hits,
    first: Option<String>,
    #[serde(default)]
    ordered: bool,
    notice: Option<String>,
    /// Number of hits per group.
    groups: Option<BTreeMap<String, u64>>,
    /// Sums per group, by field. Fields that are left out are compared with direct evaluation only.
    #[serde(default)]
    sums: Sums,
    #[serde(default)]
    #[allow(dead_code, reason = "used by tests with a real control plane")]
    templates: bool,
    #[serde(default)]
    #[allow(dead_code, reason = "documentation in the file")]
    why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cluster {
    name: String,
    region: String,
    zones: Vec<String>,
    provider: String,
    labels: BTreeMap<String, String>,
    #[serde(default)]
    stale: bool,
}

impl From<Cluster> for ClusterProperties {
    fn from(Cluster { name, region, zones, provider, labels, stale }: Cluster) -> Self {
        Self { name, region, zones, provider, labels, stale }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Hits {
    Number(u64),
    Named(Vec<String>),
}

/// Read at run time, so that data can be changed without a rebuild.
pub(crate) fn fixture(name: &str) -> String {
    let path = format!("{}/tests/fixtures/corpus/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn milliseconds(time: &str) -> i64 {
    time.parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

pub(crate) fn planning_context() -> PlanningContext {
    let clusters: Vec<Cluster> = serde_saphyr::from_str(&fixture("clusters")).unwrap();
    let kinds: BTreeMap<String, Vec<String>> = serde_saphyr::from_str(&fixture("kinds")).unwrap();
    let mut names = KindsByName::new();
    for (qualified, others) in kinds {
        let (kind, group) = qualified.split_once('.').unwrap_or((&qualified, ""));
        let kind = GroupKind { group: group.to_owned(), kind: kind.to_owned() };
        for name in others.into_iter().chain([kind.kind.clone()]) {
            names.entry(name).or_default().insert(kind.clone());
        }
    }
    PlanningContext {
        clusters: clusters.into_iter().map(ClusterProperties::from).collect(),
        kinds: Arc::new(names),
        now: NOW,
    }
}

fn name_of(object: &Object) -> String {
    let record = &object.record;
    let (cluster, namespace, name) = (record.key.cluster(), &record.key.namespace, &record.key.name);
    match &**namespace {
        "" => format!("{cluster}/{}/{name}", record.kind),
        namespace => format!("{cluster}/{}/{namespace}/{name}", record.kind),
    }
}

pub(crate) struct Corpus {
    _home: tempfile::TempDir,
    pub(crate) sources: Sources,
    /// Current objects.
    documents: Vec<(String, Document)>,
}

impl Corpus {
    /// Uses the text index.
    pub(super) async fn new() -> Self {
        let (home, store) = stored_objects().await;
        Self::with_store(home, store).await
    }

    /// Uses a text index of the objects of a store.
    pub(crate) async fn with_store(home: tempfile::TempDir, store: Arc<SqliteStore>) -> Self {
        let text = TextIndex::in_memory().unwrap();
        let mut writer: tantivy::IndexWriter = text.writer(15_000_000).unwrap();
        for (_, document) in documents(&store).await {
            writer.add_document(document.to_tantivy(&text.columns)).unwrap();
        }
        writer.commit().unwrap();
        text.reload(crowsnest_store::Seq(0), &|_, _, _| {}).unwrap();
        let permits = SearchPermits::for_cores();
        let engine = TantivyEngine::new(text, Arc::clone(&permits), watch::channel(Seq(0)).1);
        Self::with_engine(home, store, Arc::new(engine), permits).await
    }

    /// Uses an engine that has all objects of a store.
    pub(super) async fn with_engine(
        home: tempfile::TempDir,
        store: Arc<SqliteStore>,
        engine: Arc<dyn Engine>,
        permits: Arc<SearchPermits>,
    ) -> Self {
        let documents = documents(&store).await;
        let permissions = Arc::new(RbacRules::default()).for_caller(&UserInfo::system());
        let context = SearchContext::new(permissions, Instant::now(), Duration::from_secs(600));
        let (dependency_permits, references) = (SearchPermits::new(1), Arc::new([]));
        let sources = Sources { engine, permits, dependency_permits, store, references, context };
        Self { _home: home, sources, documents }
    }

    /// Executes a query.
    async fn execute(&self, query: &str) -> QueryResult {
        self.execute_with(&self.sources, query).await
    }

    /// Data sources with a user's permissions.
    pub(crate) fn as_reader(&self, rbac_rules: &Arc<RbacRules>, user: &str) -> Sources {
        let permissions = Arc::new(Mutex::new(rbac_rules.for_caller(&UserInfo::new(user, ["staff"]))));
        let context = SearchContext { permissions, ..self.sources.context.clone() };
        Sources { context, ..self.sources.clone() }
    }

    pub(super) async fn execute_with(&self, sources: &Sources, query: &str) -> QueryResult {
        let query = parse(query, &Limits::default()).unwrap();
        let plan = plan(&query, &planning_context());
        let mut notices: Vec<String> =
            query.notices.iter().chain(&plan.notices).map(|notice| notice.message.clone()).collect();
        let facets = vec![FacetField::Column(Facet::Kind)];
        let group = resolve_group(&query, &mut |_, message| notices.push(message));
        let facet_request = FacetRequest::new(facets, group, amounts().collect());
        let request = TopHitsRequest {
            sort: resolve_sort(&query, &mut |_, message| notices.push(message)),
            after: None,
            max_hits: query.output.limit.unwrap_or(1000),
            facets: facet_request.columns(),
            sums: facet_request.sums_request(),
            planning_context: Arc::new(planning_context()),
        };
        let found = find_with_terms(sources, plan, request, &facet_request.terms_requests()).await.unwrap();
        let counts = facet_request.count(sources, &planning_context(), &found).await.unwrap();
        let SearchResults { top, notices: limit_notices, .. } = found;
        notices.extend(limit_notices.into_iter().chain(counts.notices));
        assert_eq!(
            counts.facets[0].values.iter().map(|(_, count)| count).sum::<u64>(),
            top.total,
            "every hit has a kind: {query} {:?}",
            top.facets
        );
        let mut hits = Vec::new();
        for hit in &top.hits {
            hits.push(self.name(hit).await);
        }
        let sums = counts.groups.iter().flat_map(sums_by_group).collect();
        let groups = counts.groups.map(|groups| groups.values.into_iter().collect());
        QueryResult { hits, total: top.total, groups, sums, notices }
    }

    /// All hits in order, as read by an export.
    async fn scan(&self, query: &str) -> Vec<String> {
        let query = parse(query, &Limits::default()).unwrap();
        let request = TopHitsRequest {
            sort: resolve_sort(&query, &mut |_, _| {}),
            max_hits: query.output.limit.unwrap_or(1000),
            planning_context: Arc::new(planning_context()),
            ..TopHitsRequest::total_only()
        };
        let mut scan = begin_scan(&self.sources, plan(&query, &planning_context()), request).await.unwrap();
        let mut names = Vec::new();
        loop {
            let hits = scan.next(7).await.unwrap();
            if hits.is_empty() {
                return names;
            }
            for hit in hits {
                names.push(self.name(&hit).await);
            }
        }
    }

    async fn name(&self, hit: &RankedHit) -> String {
        match hit.ended_by {
            None => name_of(&self.sources.store.by_ids(&[hit.position.id], BodyMode::Read).await.unwrap()[0]),
            Some(ended) => {
                let versions: Vec<Version> = self.sources.store.versions_ended_by(&[ended]).await.unwrap();
                name_of(&versions[0].object)
            }
        }
    }

    /// The hits by direct evaluation of the current objects, the number of hits per group, and the sums per group; None if the
    /// query needs the store.
    fn model(&self, query: &str) -> Option<(BTreeSet<String>, Option<BTreeMap<String, u64>>, Sums)> {
        let query = parse(query, &Limits::default()).unwrap();
        let plan = plan(&query, &planning_context());
        let changed = |part: &crate::plan::predicate::Match| matches!(part, crate::plan::predicate::Match::Changed(_));
        if plan.scope != TimeScope::Now || plan.matches.contains(&changed) {
            return None;
        }
        let mut all = ReadableDocuments(self.documents.iter().map(|(_, document)| document).collect());
        let matches = block_on(resolve(plan.matches, &mut all)).unwrap();
        let found = self.documents.iter().filter(|(_, document)| DocumentEvaluator::new(document).is_match(&matches));
        let found: Vec<_> = found.collect();
        let group = resolve_group(&query, &mut |_, _| {});
        let groups = group.as_ref().map(|group| {
            let mut groups = BTreeMap::new();
            let values = found.iter().flat_map(|(_, document)| values(document, group));
            values.for_each(|value| *groups.entry(value).or_default() += 1);
            groups
        });
        let mut sums = Sums::new();
        for (number, group) in amounts().filter_map(|number| Some((number, group.as_ref()?))) {
            let sums = sums.entry(number.name().to_owned()).or_default();
            for (_, document) in &found {
                let amount =
                    document.numbers.iter().find(|(column, _)| *column == number).map_or(0, |(_, amount)| *amount);
                values(document, group).into_iter().for_each(|value| *sums.entry(value).or_default() += amount);
            }
        }
        Some((found.iter().map(|(name, _)| name.clone()).collect(), groups, sums))
    }
}

/// A store with all changes of the objects.
pub(super) async fn stored_objects() -> (tempfile::TempDir, Arc<SqliteStore>) {
    let home = tempfile::tempdir().unwrap();
    let codec = Arc::new(Codec::default());
    let store = SqliteStore::open(&CacheOptions::new(home.path()), Arc::clone(&codec)).await.unwrap();
    let entries: Vec<Entry> = serde_saphyr::from_str(&fixture("objects")).unwrap();
    let mut collections: BTreeMap<(String, String, String, String), CollectionKey> = BTreeMap::new();
    for entry in entries {
        let at = milliseconds(entry.at.as_deref().unwrap_or(BEGIN));
        let mut progress = Progress::default();
        let (collection, write) = match (&entry.object, &entry.deleted) {
            (Some(object), None) => {
                let draft = draft(object);
                let collection = CollectionKey::new(cluster(&entry.cluster), resource_of(object));
                let key = (entry.cluster.clone(), draft.kind.clone(), draft.namespace.clone(), draft.name.clone());
                collections.insert(key, collection.clone());
                let (packed, _) = codec.pack("/any", &draft.body).unwrap();
                progress.kind = Some((draft.kind.clone(), !draft.namespace.is_empty()));
                (collection, RecordWrite::Put(Box::new(draft), packed))
            }
            (None, Some(deleted)) => {
                let mut parts = deleted.splitn(3, '/').map(str::to_owned).collect::<Vec<_>>();
                if parts.len() == 2 {
                    parts.insert(1, String::new());
                }
                let [kind, namespace, name] = parts.try_into().unwrap();
                let key = (entry.cluster.clone(), kind, namespace.clone(), name.clone());
                let collection = collections.get(&key).unwrap_or_else(|| panic!("{deleted} was never created"));
                (collection.clone(), RecordWrite::Delete { namespace, name, resource_version: "9999999".to_owned() })
            }
            _ => panic!("an entry is an object or a deletion"),
        };
        let batch = Batch { collection, epoch: Epoch::UNSHARED, writes: vec![write], progress };
        let changes = store.apply(&[batch], at).await.unwrap();
        assert_eq!(changes.len(), 1, "an entry that changes nothing");
    }
    (home, Arc::new(store))
}

/// Current objects.
async fn documents(store: &SqliteStore) -> Vec<(String, Document)> {
    let mut documents = Vec::new();
    for change in store.replay(Seq(0), 10_000).await.unwrap() {
        let ReplayedChange::Put(object) = change else { continue };
        documents.push((name_of(&object), Document::from_object(&object).unwrap()));
    }
    documents
}

#[derive(Debug)]
pub(super) struct QueryResult {
    pub(super) hits: Vec<String>,
    pub(super) total: u64,
    pub(super) groups: Option<BTreeMap<String, u64>>,
    /// Sums of all amounts.
    pub(super) sums: Sums,
    pub(super) notices: Vec<String>,
}

#[tokio::test]
async fn every_query_finds_its_hits() {
    let wrong_results = find_wrong_results(&Corpus::new().await).await;
    assert!(wrong_results.is_empty(), "{} are wrong:\n{}", wrong_results.len(), wrong_results.join("\n"));
}

/// Queries with wrong results, and the reasons.
pub(super) async fn find_wrong_results(corpus: &Corpus) -> Vec<String> {
    let cases: Vec<QueryCase> = serde_saphyr::from_str(&fixture("queries")).unwrap();
    assert!(cases.len() >= 250, "{} queries", cases.len());
    let mut messages = Vec::new();
    for QueryCase { query, hits, first, ordered, notice, groups: expected_groups, sums: expected_sums, .. } in &cases {
        let QueryResult { hits: found, total, groups, sums, notices } = corpus.execute(query).await;
        let scanned = corpus.scan(query).await;
        let mut add_error = |what: String| messages.push(format!("{query}\n    {what}"));
        if scanned != found {
            add_error(format!("a full scan returns {scanned:?}"));
        }
        match hits {
            Hits::Number(number) if *number != total => add_error(format!("{total} hits, not {number}")),
            Hits::Number(_) => {}
            Hits::Named(expected) => {
                let mut sorted = found.clone();
                sorted.sort();
                let shown = if *ordered { &found } else { &sorted };
                if shown != expected {
                    let lacks: Vec<_> = expected.iter().filter(|hit| !found.contains(hit)).collect();
                    let more: Vec<_> = found.iter().filter(|hit| !expected.contains(hit)).collect();
                    add_error(format!("lacks {lacks:?}, has {more:?} more, in the order {shown:?}"));
                }
            }
        }
        if first.is_some() && first.as_ref() != found.first() {
            add_error(format!("first is {:?}", found.first()));
        }
        let has_expected = notice.as_ref().is_none_or(|words| notices.iter().any(|found| found.contains(words)));
        if !has_expected || notice.is_none() && !notices.is_empty() {
            add_error(format!("notices {notices:?}"));
        }
        if expected_groups.is_some() && *expected_groups != groups {
            add_error(format!("groups {groups:?}"));
        }
        if expected_sums.iter().any(|(field, expected)| sums.get(field) != Some(expected)) {
            add_error(format!("sums {sums:?}"));
        }
        if let Some((model, grouped, summed)) = corpus.model(query) {
            if grouped != groups {
                add_error(format!("direct evaluation groups {grouped:?}, the engine {groups:?}"));
            }
            if summed != sums {
                add_error(format!("direct evaluation sums {summed:?}, the engine {sums:?}"));
            }
            let found: BTreeSet<String> = found.into_iter().collect();
            if model.len() as u64 != total || !found.is_subset(&model) {
                add_error(format!("direct evaluation finds {model:?}"));
            }
        }
    }
    messages
}

/// Old versions are counted and suggested like current objects, within the caller's permissions.
#[rstest]
#[case::deleted("is:deleted", "label", "app=", "app=relay 2, app=checkout 1, app=web 1", "app=relay 1")]
#[case::deleted_names("is:deleted kind:pod", "name", "r", "relay-77-xyz12 1", "relay-77-xyz12 1")]
#[case::of_both_times("kind:deploy (is:deleted OR name:cache)", "label", "app=", "app=cache 1, app=relay 1", "")]
#[case::then("at:2026-09-21T08:30:00Z kind:pod cluster:member3", "label", "app=re", "app=relay 1", "app=relay 1")]
#[case::since("during:now-3h.. label:canary", "label", "tier=", "tier=front 1", "")]
#[case::now("kind:deploy ns:edge", "label", "app=", "app=cache 1", "")]
#[tokio::test]
async fn values_of_old_versions_are_suggested(
    #[case] rest: &str,
    #[case] field: &str,
    #[case] written: &str,
    #[case] expected: &str,
    #[case] to_ann: &str,
) {
    let corpus = Corpus::new().await;
    let rbac_rules = reader_rules("member3", "edge");
    for (sources, expected) in [(corpus.sources.clone(), expected), (corpus.as_reader(&rbac_rules, "ann"), to_ann)] {
        assert_eq!(suggest_values(sources, rest, field, written).await, expected);
    }
}

#[rstest]
#[case::of_terms("label", "app=")]
#[case::of_numbers("restarts", "")]
#[tokio::test]
async fn suggestions_after_the_deadline_are_incomplete(#[case] field: &str, #[case] written: &str) {
    let corpus = Corpus::new().await;
    let late = corpus.sources.with_deadline(corpus.sources.context.requested_at);
    for (sources, expected) in [(corpus.sources.clone(), false), (late, true)] {
        assert_eq!(suggest(sources, "", field, written).await.incomplete, expected);
    }
}

/// Suggested values of a field with their counts.
pub(super) async fn suggest_values(sources: Sources, rest: &str, field: &str, written: &str) -> String {
    let suggestions = suggest(sources, rest, field, written).await.items;
    let lines: Vec<String> = suggestions.iter().map(|s| format!("{} {}", s.text, s.count.unwrap())).collect();
    lines.join(", ")
}

async fn suggest(sources: Sources, rest: &str, field: &str, written: &str) -> ValueSuggestions {
    let rest = parse(rest, &Limits::default()).unwrap();
    let Some(Field::Definition(definition)) = find_field(field) else { panic!("{field} is not a field") };
    let values = ValueSuggester { sources, planning_context: planning_context(), rest, limit: 10 };
    values.suggest(definition, written).await.unwrap()
}

/// Rules by which the user ann may list the pods of one namespace of a cluster.
pub(super) fn reader_rules(cluster: &str, namespace: &str) -> Arc<RbacRules> {
    let rbac_rules = Arc::new(RbacRules::default());
    let subjects = serde_json::json!([{"kind": "User", "name": "ann"}]);
    let rules = serde_json::json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}]);
    let role = serde_json::json!({"kind": "Role", "name": "reader"});
    for (kind, field, value) in [("Role", "rules", rules), ("RoleBinding", "roleRef", role)] {
        let object = serde_json::json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, field: value,
            "metadata": {"namespace": namespace, "name": "reader"}, "subjects": subjects});
        let object = stored(cluster, 1, &object);
        rbac_rules.apply(&object.record, &object.body, ChangeKind::Added);
    }
    rbac_rules
}

/// A reader of one namespace finds exactly the old versions of that namespace.
#[tokio::test]
async fn old_versions_are_found_within_permissions() {
    check_permissions_for_history(&Corpus::new().await).await;
}

pub(super) async fn check_permissions_for_history(corpus: &Corpus) {
    for (cluster, namespace) in [("member1", "shop"), ("member2", "team-a"), ("member3", "edge"), ("member3", "none")] {
        let sources = corpus.as_reader(&reader_rules(cluster, namespace), "ann");
        for query in
            ["is:deleted", "at:2026-09-21T08:30:00Z", "at:now-1h", "during:now-3h..now", "changed.field:status"]
        {
            let prefix = format!("{cluster}/Pod/{namespace}/");
            let expected: BTreeSet<String> =
                corpus.execute(query).await.hits.into_iter().filter(|hit| hit.starts_with(&prefix)).collect();
            let found = corpus.execute_with(&sources, query).await;
            assert_eq!(
                (found.hits.into_iter().collect(), found.total),
                (expected.clone(), expected.len() as u64),
                "{query}"
            );
        }
    }
}

/// Reads the old versions of an object by its key.
#[tokio::test]
async fn the_corpus_has_a_history() {
    let corpus = Corpus::new().await;
    let filter = VersionFilter { only_deleted: false, ..VersionFilter::DELETED };
    let versions = corpus.sources.store.versions_in(&filter, &VersionExclusions::NONE, 1000).await.unwrap();
    assert!(versions.iter().any(|version| version.deleted) && versions.iter().any(|version| !version.deleted));
    let key: &RecordKey = &versions[0].object.record.key;
    assert!(!corpus.sources.store.versions(key, 10).await.unwrap().is_empty());
}
