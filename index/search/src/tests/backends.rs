//! Runs the queries of the corpus on external engines through the backend: its writer follows the store; searches are
//! planned, executed and counted as with the text index.

use super::corpus::{
    Corpus, QueryResult, check_permissions_for_history, find_wrong_results, stored_objects, suggest_values,
};
use super::properties::{self, rules_from};
use crate::authorization::RbacRules;
use crate::collect::TopHitsRequest;
use crate::engine::{Engine, EngineContext, EngineHandle, SearchContext, backend};
use crate::execute::permits::SearchPermits;
use crate::opensearch::node::Node;
use crate::opensearch::tests::samples::{self, generate};
use crate::plan::predicate::Match;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_store::CollectionStates;
use crowsnest_store::tail::Tail;
use crowsnest_store::{Batch, Progress, RecordWrite, ReplayedChange, Store};
use crowsnest_store::{CacheOptions, CollectionKey, Epoch, OpenSearchOptions, Seq};
use rstest::rstest;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Orders and groups of generated queries.
const OUTPUTS: [&str; 7] =
    ["", "sort:name", "sort:-restarts,name", "sort:region", "group:kind sort:image", "group:label:app", "group:node"];

/// Timeout of any step.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);

/// The backend over a store.
struct Backend {
    engine: Arc<dyn Engine>,
    committed: Arc<AtomicU64>,
    tail: Arc<Tail>,
    _stop: DropGuard,
}

impl Backend {
    /// Opens the backend and starts its worker.
    async fn open(url: String, store: Arc<dyn Store>, permits: &Arc<SearchPermits>) -> Self {
        // Fails if another test installed the provider.
        drop(rustls::crypto::ring::default_provider().install_default());
        let opensearch = OpenSearchOptions { urls: vec![url], ..OpenSearchOptions::default() };
        let options =
            CacheOptions { index_backend: "opensearch".to_owned(), opensearch, ..CacheOptions::new("unused") };
        let states = Arc::new(CollectionStates::default());
        for collection in store.collections().await.unwrap() {
            states.update(&collection.key, |_| {});
        }
        let (committed, stop) = (Arc::new(AtomicU64::default()), CancellationToken::new());
        let identity = store.identity().await.unwrap();
        let tail = Arc::new(Tail::new(store.latest().await.unwrap(), 10, 1 << 20));
        let context = EngineContext {
            options: &options,
            identity: &identity,
            tail: Arc::clone(&tail),
            store,
            states,
            rbac_rules: Arc::new(RbacRules::default()),
            metrics: Arc::default(),
            permits: Arc::clone(permits),
            committed: Arc::clone(&committed),
            elected: watch::channel(true).1,
            stop: stop.clone(),
        };
        let EngineHandle { engine, worker } = (backend(&options.index_backend).unwrap().open)(context).await.unwrap();
        tokio::spawn(worker);
        Self { engine, committed, tail, _stop: stop.drop_guard() }
    }

    /// Waits until searches find all changes.
    async fn wait_until_searchable(&self) {
        let (latest, mut searchable) = (self.tail.latest(), self.engine.searchable());
        tokio::time::timeout(STEP_TIMEOUT, searchable.wait_for(|seq| *seq >= latest)).await.unwrap().unwrap();
        assert_eq!(self.committed.load(Ordering::Relaxed), latest.0);
    }
}

/// Paths, in current objects or within a relation, in queries about the present and the past.
fn queries_with_paths_relations_and_history() -> impl Iterator<Item = String> {
    let paths =
        [".spec.replicas:2", "checkout .spec.replicas:>1", "-.spec.replicas:1 kind:deploy", ".metadata.name:c*"];
    let relations = ["", "select:deployment", "select:pod sort:relevance", "has.pod(.spec.nodeName:n*)"];
    let times = ["", "is:deleted", "at:2026-09-21T11:10:00Z", "during:2026-09-21..2026-09-22"];
    let all = paths.into_iter().flat_map(move |path| relations.map(|relation| (path, relation)));
    all.flat_map(move |(path, relation)| times.map(|time| format!("{path} {relation} {time}")))
}

/// Generated queries that an engine executes differently than the text index, for all users or within a user's
/// permissions.
async fn differences(engine: &Corpus, text: &Corpus) -> Vec<String> {
    let count = std::env::var("CROWSNEST_ENGINE_QUERIES").map_or(60, |count| count.parse().unwrap());
    let mut queries = generate(samples::query(), count);
    queries.extend(generate(properties::query(), count / 2));
    queries.extend(generate(properties::relation(), count / 4));
    queries.extend(queries_with_paths_relations_and_history());
    let rbac_rules: Vec<_> =
        generate(properties::some_grants(), 8).iter().map(|some| Arc::new(rules_from(some))).collect();
    let (all, mut found_some, mut wrong) = (queries.len(), 0, Vec::new());
    for (nth, query) in queries.into_iter().enumerate() {
        let query = format!("{query} {}", OUTPUTS[nth % OUTPUTS.len()]);
        let rbac_rules = &rbac_rules[nth % rbac_rules.len()];
        for (who, ours, theirs) in [
            ("everybody", engine.sources.clone(), text.sources.clone()),
            ("ann", engine.as_reader(rbac_rules, "ann"), text.as_reader(rbac_rules, "ann")),
        ] {
            let (found, expected) =
                (engine.execute_with(&ours, &query).await, text.execute_with(&theirs, &query).await);
            found_some += usize::from(expected.total > 0);
            // The texts of notices about patterns differ between engines.
            let hits = |result: &QueryResult| (result.hits.clone(), result.total, result.groups.clone());
            let has_same_counts = hits(&found) == hits(&expected) && found.sums == expected.sums;
            if found.notices.len() != expected.notices.len() || !has_same_counts {
                wrong.push(format!("{query} of {who}\n    {found:?}\n    not {expected:?}"));
            }
        }
    }
    assert!(found_some > all / 3, "{found_some} of {all} queries find something");
    wrong
}

#[rstest]
#[case::opensearch_2("opensearch-2")]
#[case::opensearch_3("opensearch-3")]
#[case::elasticsearch_7("elasticsearch-7")]
#[case::elasticsearch_8("elasticsearch-8")]
#[case::elasticsearch_9("elasticsearch-9")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts search engines: run .ci/engines test"]
async fn engines_answer_the_corpus(#[case] name: &str) {
    let Some(node) = Node::start(name) else { return };
    let ((home, store), permits) = (stored_objects().await, SearchPermits::for_cores());
    let backend = Backend::open(node.url(), Arc::clone(&store) as _, &permits).await;
    backend.wait_until_searchable().await;
    let corpus = Corpus::with_engine(home, Arc::clone(&store), Arc::clone(&backend.engine), permits).await;
    let total = TopHitsRequest::total_only();
    let wrong_results = find_wrong_results(&corpus).await;
    assert!(wrong_results.is_empty(), "{} are wrong:\n{}", wrong_results.len(), wrong_results.join("\n"));
    check_permissions_for_history(&corpus).await;
    let wrong_results = differences(&corpus, &Corpus::new().await).await;
    assert!(wrong_results.is_empty(), "{} differ:\n{}", wrong_results.len(), wrong_results.join("\n"));
    for (rest, field, written, expected) in [
        ("kind:deploy ns:edge", "label", "app=", "app=cache 1"),
        ("is:deleted", "label", "app=", "app=relay 2, app=checkout 1, app=web 1"),
        ("is:deleted kind:pod", "name", "r", "relay-77-xyz12 1"),
    ] {
        assert_eq!(
            suggest_values(corpus.sources.clone(), rest, field, written).await,
            expected,
            "{rest} {field}:{written}"
        );
    }
    let everything = corpus.sources.engine.top_hits(&corpus.sources.context, &Match::All, &total).await.unwrap();
    assert_eq!((everything.incomplete, everything.notices.len()), (false, 0), "{:?}", everything.notices);
    let mut clusters: Vec<String> = Vec::new();
    for scope in backend.engine.scopes(&crowsnest_store::fixtures::cluster("member3")).await.unwrap() {
        clusters.push(scope.split('\u{1f}').next().unwrap().to_owned());
    }
    assert!(!clusters.is_empty() && clusters.iter().all(|cluster| cluster == "member3"), "{clusters:?}");
    // Deletions are applied.
    let ReplayedChange::Put(object) = store.replay(Seq(0), 1).await.unwrap().remove(0) else {
        panic!("it was deleted")
    };
    let key = &object.record.key;
    let collection = CollectionKey::new(key.cluster().clone(), key.resource().clone());
    let (namespace, name) = (key.namespace.to_string(), key.name.to_string());
    let writes = vec![RecordWrite::Delete { namespace, name, resource_version: "9999999".to_owned() }];
    let batch = Batch { collection, epoch: Epoch::UNSHARED, writes, progress: Progress::default() };
    assert!(backend.tail.publish(store.apply(&[batch], 0).await.unwrap()));
    backend.wait_until_searchable().await;
    let after = corpus.sources.engine.top_hits(&corpus.sources.context, &Match::All, &total).await.unwrap();
    assert_eq!(after.total + 1, everything.total);
    // An unavailable engine leads to an incomplete result with a notice, and an export fails.
    drop(node);
    let permissions = Arc::new(RbacRules::default()).for_caller(&UserInfo::system());
    let context = SearchContext::new(permissions, Instant::now(), Duration::from_secs(5));
    let found = backend.engine.top_hits(&context, &Match::All, &total).await.unwrap();
    assert_eq!((found.total, found.incomplete, found.notices.len()), (0, true, 1), "{:?}", found.notices);
    let lookup = backend.engine.ids(&context, &Match::All).await.unwrap();
    assert!(lookup.incomplete && lookup.values.is_empty() && lookup.notices.len() == 1);
    assert!(backend.engine.scan(&context, &Match::All, &total).await.is_err());
}
