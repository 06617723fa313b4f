//! Queries on a small fleet: expected hits, and comparison of the text index with direct evaluation.

mod backends;
mod cancellation;
pub(crate) mod corpus;
mod groups;
mod objects;
pub(crate) mod properties;
mod sums;

use crate::authorization::RbacRules;
use crate::collect::{TopHits, TopHitsRequest};
use crate::document::columns::Facet;
use crate::document::{Document, RedactedObject};
use crate::engine::SearchContext;
use crate::execute::evaluate::DocumentEvaluator;
use crate::execute::limit_events_since;
use crate::plan::predicate::Match;
use crate::plan::relations::{RelatedObjectLookup, resolve};
use crate::plan::sort::{RankedHit, Sort, SortBy};
use crate::plan::{ClusterProperties, GroupKind, PlanningContext, plan};
use crate::tantivy::TextIndex;
use crate::tantivy::reader::collector::{self, top_hits};
use crate::tantivy::reader::scan::SnapshotScan;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_query::{Limits, parse};
use crowsnest_store::Object;
use crowsnest_store::fixtures::{stored, stored_with_options};
use crowsnest_store::ingest::IngestOptions;
use crowsnest_store::record::ChangeKind;
use futures::executor::block_on;
pub(crate) use objects::ReadableDocuments;
use objects::TextIndexObjects;
use rstest::rstest;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// 2026-09-21T14:13:20Z, as the records' `changed_at`.
const NOW: i64 = 1_790_000_000;

fn planning_context() -> PlanningContext {
    let cluster = |name: &str, region: &str, env: &str| ClusterProperties {
        name: name.into(),
        region: region.into(),
        zones: vec![format!("{region}-a")],
        provider: "acme".into(),
        labels: BTreeMap::from([("env".into(), env.into())]),
        stale: name == "member2",
    };
    let kinds = [
        ("po", "", "pod"),
        ("pods", "", "pod"),
        ("pod", "", "pod"),
        ("deploy", "apps", "deployment"),
        ("ev", "", "event"),
        ("no", "", "node"),
    ];
    let group_kind = |group: &str, kind: &str| GroupKind { group: group.to_owned(), kind: kind.to_owned() };
    PlanningContext {
        clusters: vec![cluster("member1", "eu-west", "prod"), cluster("member2", "us-east", "dev")],
        kinds: Arc::new(
            kinds.map(|(name, group, kind)| (name.to_owned(), BTreeSet::from([group_kind(group, kind)]))).into(),
        ),
        now: NOW,
    }
}

pub(crate) fn fleet() -> Vec<(&'static str, Value)> {
    let text = include_str!("../../tests/fixtures/fleet.json");
    let all: Vec<(String, Value)> = serde_json::from_str(text).unwrap();
    all.into_iter()
        .map(|(cluster, object)| (if cluster == "member1" { "member1" } else { "member2" }, object))
        .collect()
}

pub(crate) struct Corpus {
    pub(crate) text: Arc<TextIndex>,
    pub(crate) documents: Vec<(String, Document)>,
}

impl Corpus {
    pub(crate) fn new(objects: &[(&str, Value)]) -> Self {
        let text = TextIndex::in_memory().unwrap();
        let mut writer: tantivy::IndexWriter = text.writer(15_000_000).unwrap();
        let mut documents = Vec::new();
        for (nth, (cluster, value)) in objects.iter().enumerate() {
            let object = stored(cluster, nth as u64 + 1, value);
            let document = Document::from_object(&object).unwrap();
            writer.add_document(document.to_tantivy(&text.columns)).unwrap();
            documents.push((format!("{}/{}", object.record.kind, object.record.key.name), document));
        }
        writer.commit().unwrap();
        text.reload(crowsnest_store::Seq(0), &|_, _, _| {}).unwrap();
        Self { text, documents }
    }

    fn name(&self, id: u64) -> String {
        self.documents[id as usize - 1].0.clone()
    }

    fn resolve_plan(&self, query: &str, objects: &mut dyn RelatedObjectLookup) -> Match {
        let plan = plan(&parse(query, &Limits::default()).unwrap(), &planning_context());
        block_on(resolve(plan.matches, objects)).unwrap()
    }

    fn search(&self, query: &str, by: SortBy, descending: bool) -> Vec<String> {
        self.search_as(query, RbacRules::default(), &UserInfo::system(), Sort { by, descending })
    }

    fn search_as(&self, query: &str, rbac_rules: RbacRules, caller: &UserInfo, sort: Sort) -> Vec<String> {
        let rbac_rules = Arc::new(rbac_rules);
        let matches =
            self.resolve_plan(query, &mut TextIndexObjects { text: &self.text, context: context(&rbac_rules, caller) });
        let found = self.find_hits(matches, &rbac_rules, caller, sort);
        assert_eq!(found.total as usize, found.hits.len());
        assert_eq!(found.facets[0].iter().map(|(_, count)| count).sum::<u64>(), found.total);
        found.hits.iter().map(|hit| self.name(hit.position.id)).collect()
    }

    /// Top hits of the text index among the objects that the caller may read.
    pub(crate) fn find_top_hits(
        &self,
        matches: Match,
        rbac_rules: &Arc<RbacRules>,
        caller: &UserInfo,
        request: &TopHitsRequest,
    ) -> TopHits {
        top_hits(&self.text, &context(rbac_rules, caller), &matches, request).unwrap()
    }

    fn find_hits(&self, matches: Match, rbac_rules: &Arc<RbacRules>, caller: &UserInfo, sort: Sort) -> TopHits {
        let request = TopHitsRequest {
            sort: vec![sort],
            after: None,
            max_hits: 100,
            facets: vec![Facet::Kind],
            sums: None,
            planning_context: Arc::new(planning_context()),
        };
        self.find_top_hits(matches, rbac_rules, caller, &request)
    }

    fn evaluate(&self, query: &str) -> BTreeSet<String> {
        self.evaluate_readable(query, &|_| true)
    }

    /// The result of direct evaluation of each document that may be read.
    fn evaluate_readable(&self, query: &str, may_read: &dyn Fn(&Document) -> bool) -> BTreeSet<String> {
        let mut readable = ReadableDocuments(self.documents.iter().map(|(_, d)| d).filter(|d| may_read(d)).collect());
        let matches = self.resolve_plan(query, &mut readable);
        let found = readable.0.iter().filter(|document| DocumentEvaluator::new(document).is_match(&matches));
        found.map(|document| self.name(document.id)).collect()
    }
}

/// Context of a caller's search with a deadline in one minute.
fn context(rbac_rules: &Arc<RbacRules>, caller: &UserInfo) -> SearchContext {
    SearchContext::new(rbac_rules.for_caller(caller), Instant::now(), Duration::from_secs(60))
}

static FLEET: LazyLock<Corpus> = LazyLock::new(|| Corpus::new(&fleet()));

#[rstest]
#[case::everything("", "7")]
#[case::kind_short("kind:po", "Pod/checkout-7d9f-abcde Pod/payments-0 Pod/web-0")]
#[case::kinds("kind:deploy,node", "Deployment/checkout Node/n1")]
#[case::status("status:CrashLoopBackOff", "Pod/checkout-7d9f-abcde")]
#[case::not_status("kind:pod status:!Running", "Pod/checkout-7d9f-abcde")]
#[case::negated("kind:pod -ns:shop", "Pod/web-0")]
#[case::or("name:web-0 OR name:n1", "Node/n1 Pod/web-0")]
#[case::image_part("image:nginx", "Pod/web-0")]
#[case::image_glob("image:ghcr.io/acme/*:1.2*", "Deployment/checkout Pod/checkout-7d9f-abcde")]
#[case::image_with_tag("nginx:1.27", "Pod/web-0")]
#[case::tag("image.tag:latest", "Pod/payments-0")]
#[case::label("label:app=checkout", "Deployment/checkout Pod/checkout-7d9f-abcde")]
#[case::label_glob("label:app=*o*", "Deployment/checkout Pod/checkout-7d9f-abcde")]
#[case::no_label("kind:pod label:!app", "Pod/payments-0")]
#[case::selector(r#"label:"app in (web,checkout),tier=front""#, "Pod/web-0")]
#[case::number("restarts:>5", "Pod/checkout-7d9f-abcde")]
#[case::range("replicas:2..4", "Deployment/checkout")]
#[case::ready("kind:pod ready:0", "Pod/checkout-7d9f-abcde")]
#[case::age("kind:pod age:<2h", "Pod/checkout-7d9f-abcde")]
#[case::created("kind:pod created:>2026-09-21T12:00:00Z", "Pod/checkout-7d9f-abcde")]
#[case::memory("mem.req:>=1Gi", "Pod/payments-0")]
#[case::cpu("cpu.req:>=500m", "Pod/payments-0")]
#[case::region("kind:pod region:eu-*", "Pod/checkout-7d9f-abcde Pod/payments-0")]
#[case::cluster_label("kind:pod cluster.label:env=dev", "Pod/web-0")]
#[case::condition("condition:Ready=False", "Node/n1 Pod/checkout-7d9f-abcde")]
#[case::exit("exit:137", "Pod/checkout-7d9f-abcde")]
#[case::owner("owner:deploy/checkout", "")]
#[case::owner_rs("owner:replicaset/checkout-7d9f", "Pod/checkout-7d9f-abcde")]
#[case::event("kind:event reason:BackOff type:warning count:>10", "Event/checkout.1")]
#[case::about("about:pod/checkout-7d9f-abcde", "Event/checkout.1")]
#[case::uses("uses:configmap/shop/app", "Pod/payments-0")]
#[case::uses_elsewhere("uses:configmap/team-a/app", "")]
#[case::unhealthy("is:unhealthy", "Deployment/checkout Node/n1 Pod/checkout-7d9f-abcde")]
#[case::in_namespace_and_name("team-a/web-0", "Event/web.1 Pod/web-0")]
#[case::exact_case("status:=crashloopbackoff", "")]
#[case::regex("kind:pod name:/^(web|pay).*/", "Pod/payments-0 Pod/web-0")]
#[case::content("content:hostNetwork", "Pod/payments-0")]
#[case::phrase(r#"message:"back-off restarting""#, "Event/checkout.1 Pod/checkout-7d9f-abcde")]
#[case::ip("ip:10.1.2.3", "Pod/web-0")]
#[case::node("node:n1 kind:pod", "Pod/checkout-7d9f-abcde Pod/payments-0 Pod/web-0")]
#[case::stale("kind:pod is:stale", "Pod/web-0")]
fn queries_find(#[case] query: &str, #[case] expected: &str) {
    let found: BTreeSet<String> = FLEET.search(query, SortBy::Relevance, true).into_iter().collect();
    assert_eq!(found, FLEET.evaluate(query), "the text index and direct evaluation differ");
    match expected.parse::<usize>() {
        Ok(count) => assert_eq!(found.len(), count),
        Err(_) => assert_eq!(found.into_iter().collect::<Vec<_>>().join(" "), expected),
    }
}

#[rstest]
#[case::on("on:member1", "Deployment/web ResourceBinding/web-deployment Work/web-work")]
#[case::templates_alone("on:member1 kind:deployment", "Deployment/web")]
#[case::health("health:unhealthy", "Deployment/web ResourceBinding/web-deployment")]
#[case::evicting("evicting:member2 kind:deploy", "Deployment/web")]
#[case::evicted_anywhere("is:evicting", "Deployment/web ResourceBinding/web-deployment")]
#[case::unscheduled("is:unscheduled kind:deploy", "Deployment/lost")]
#[case::not_there("kind:deploy -on:member1", "Deployment/lost")]
#[case::policy("policy:shop/spread", "Deployment/web")]
fn propagation_is_found(#[case] query: &str, #[case] expected: &str) {
    let deployment = |name: &str, uid: &str, policy: &str| {
        let annotations =
            json!({"propagationpolicy.karmada.io/namespace": "shop", "propagationpolicy.karmada.io/name": policy});
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": "shop", "uid": uid, "annotations": annotations}})
    };
    let binding = |name: &str, uid: &str, spec: Value, status: Value| {
        let mut spec = spec;
        spec["resource"] = json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "uid": uid});
        json!({"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding",
            "metadata": {"name": name, "namespace": "shop", "uid": format!("b-{uid}")}, "spec": spec, "status": status})
    };
    let scheduled = json!({"clusters": [{"name": "member1"}], "gracefulEvictionTasks": [{"fromCluster": "member2"}]});
    let work = json!({"apiVersion": "work.karmada.io/v1alpha1", "kind": "Work",
        "metadata": {"name": "web-work", "namespace": "karmada-es-member1", "uid": "w"}});
    let corpus = Corpus::new(&[
        ("karmada", deployment("web", "t1", "spread")),
        ("karmada", deployment("lost", "t2", "other")),
        ("karmada", binding("web-deployment", "t1", scheduled, json!({"aggregatedStatus": [{"health": "Unhealthy"}]}))),
        ("karmada", binding("lost-deployment", "t2", json!({}), json!({}))),
        ("karmada", work),
    ]);
    let found: BTreeSet<String> = corpus.search(query, SortBy::Relevance, true).into_iter().collect();
    assert_eq!(found, corpus.evaluate(query), "the text index and direct evaluation differ");
    assert_eq!(found.into_iter().collect::<Vec<_>>().join(" "), expected);
}

/// Journal entries: m1 lost readiness, so web was evicted at noon.
fn journal() -> Corpus {
    let web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": "web", "uid": "t1"});
    let m1 = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "name": "m1"});
    let cause = json!({"ref": m1, "text": "its taint cluster.karmada.io/unreachable:NoExecute is not tolerated", "event": "default/m1.1"});
    let event = |name: &str, involved: &Value, related: &Value, annotations: Value| {
        json!({"apiVersion": "v1", "kind": "Event", "involvedObject": involved, "related": related, "reason": "Evicted",
            "metadata": {"name": name, "namespace": "shop", "annotations": annotations},
            "eventTime": "2026-09-21T12:00:00.000000Z"})
    };
    let annotations = json!({"journal.crowsnest.io/cause": cause.to_string()});
    let garbled = json!({"journal.crowsnest.io/cause": "{"});
    Corpus::new(&[
        ("karmada", event("evicted", &web, &m1, annotations)),
        (
            "karmada",
            event(
                "flipped",
                &m1,
                &Value::Null,
                json!({"journal.crowsnest.io/cause": json!({"text": "t"}).to_string()}),
            ),
        ),
        ("karmada", event("garbled", &web, &Value::Null, garbled)),
        (
            "karmada",
            json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "shop", "uid": "t1"}}),
        ),
    ])
}

#[rstest]
#[case::about_its_object("about:deploy/shop/web", "Event/evicted Event/garbled")]
#[case::about_its_cause("about:cluster/m1", "Event/evicted Event/flipped")]
#[case::cause("cause:cluster/m1", "Event/evicted")]
#[case::cause_by_name("cause:m1", "Event/evicted")]
#[case::any_cause("cause:*", "Event/evicted")]
#[case::without_the_cause("kind:event -cause:cluster/m1", "Event/flipped Event/garbled")]
#[case::another_cause("cause:cluster/m2", "")]
#[case::object_of_such_an_event("kind:deploy has.event(reason:Evicted)", "Deployment/web")]
fn causes_are_found(#[case] query: &str, #[case] expected: &str) {
    let corpus = journal();
    let found: BTreeSet<String> = corpus.search(query, SortBy::Relevance, true).into_iter().collect();
    assert_eq!(found, corpus.evaluate(query), "the text index and direct evaluation differ");
    assert_eq!(found.into_iter().collect::<Vec<_>>().join(" "), expected);
}

/// An event matches the time when it happened; other objects match the period of their state.
#[test]
fn events_match_the_period_in_which_they_happened() {
    let corpus = journal();
    let noon = "2026-09-21T12:00:00Z".parse::<jiff::Timestamp>().unwrap().as_second();
    let since = |from: i64| {
        let matches = limit_events_since(Match::All, from);
        corpus.documents.iter().filter(|(_, document)| DocumentEvaluator::new(document).is_match(&matches)).count()
    };
    assert_eq!((since(noon), since(noon + 1)), (4, 1));
}

#[test]
fn permissions_apply_in_many_namespaces() {
    let pod = |nth: usize| {
        let metadata = json!({"name": "web", "namespace": format!("team-{nth}")});
        ("member1", json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata}))
    };
    let corpus = Corpus::new(&(0..3000).map(pod).collect::<Vec<_>>());
    let rbac_rules = RbacRules::default();
    let meta = json!({"name": "reader", "namespace": "team-17"});
    for rule in [
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta,
            "rules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
            "subjects": [{"kind": "User", "name": "ann"}]}),
    ] {
        let object = stored("member1", 1, &rule);
        rbac_rules.apply(&object.record, &object.body, ChangeKind::Added);
    }
    let ann = UserInfo::new("ann", ["system:authenticated"]);
    let matches = plan(&parse("web", &Limits::default()).unwrap(), &planning_context()).matches;
    let found = corpus.find_hits(matches, &Arc::new(rbac_rules), &ann, Sort::RELEVANCE);
    assert_eq!(found.hits.iter().map(|hit| hit.position.id).collect::<Vec<_>>(), [18]);
    assert_eq!((found.total, found.facets[0].iter().map(|(_, count)| count).sum::<u64>()), (1, 1));
}

/// Pods in several segments with more than one block of documents each, some of them deleted.
fn segments() -> (Corpus, Vec<(u64, Value)>) {
    let pod = |nth: u64| {
        let setting = ["setting_1", "setting2", "settingé", "set-ting", "unset"][nth as usize % 5];
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": format!("team-{}", nth % 7), "name": format!("web-{}", nth % 90)},
            "spec": {"containers": [{"name": "a", "image": format!("a:{}", nth % 3), "resources": {"requests": {"cpu": format!("{nth}m")}}},
                {"name": "b", "image": format!("b:{}", nth % 2)}]},
            "status": {"phase": "Running", "message": setting}})
    };
    let corpus = Corpus::new(&[]);
    let mut writer: tantivy::IndexWriter = corpus.text.writer(15_000_000).unwrap();
    writer.set_merge_policy(Box::new(tantivy::indexer::NoMergePolicy));
    let mut pods = Vec::new();
    for nth in 0..2000 {
        let document = Document::from_object(&stored("member1", nth + 1, &pod(nth))).unwrap();
        writer.add_document(document.to_tantivy(&corpus.text.columns)).unwrap();
        pods.push((nth + 1, pod(nth)));
        if nth % 700 == 699 {
            writer.commit().unwrap();
        }
    }
    for id in (1..2000).step_by(11) {
        writer.delete_term(tantivy::Term::from_field_u64(corpus.text.columns.id, id));
        pods.retain(|(other, _)| *other != id);
    }
    writer.commit().unwrap();
    corpus.text.reload(crowsnest_store::Seq(0), &|_, _, _| {}).unwrap();
    (corpus, pods)
}

#[rstest]
#[case::everything("", |_: &str| true)]
#[case::a_word_and_its_continuations("setting", |value: &str| value.starts_with("setting"))]
#[case::a_longer_word("content:setting_1", |value: &str| value == "setting_1")]
#[case::a_tail("content:ting", |value: &str| value == "set-ting")]
#[case::a_part("name:web-8 -content:unset", |value: &str| value != "unset")]
fn top_hits_of_segments_are_merged(#[case] query: &str, #[case] is_expected: fn(&str) -> bool) {
    static SEGMENTS: LazyLock<(Corpus, Vec<(u64, Value)>)> = LazyLock::new(segments);
    let (corpus, pods) = &*SEGMENTS;
    assert_eq!(corpus.text.searcher().segment_readers().len(), 3);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let has_name_condition = query.contains("name:");
    let expected: BTreeSet<u64> = pods
        .iter()
        .filter(|(_, pod)| {
            is_expected(&text(&pod["status"]["message"])) && (!has_name_condition || pod["metadata"]["name"] == "web-8")
        })
        .map(|(id, _)| *id)
        .collect();
    let matches = plan(&parse(query, &Limits::default()).unwrap(), &planning_context()).matches;
    let request = |max_hits: usize, sort: Sort, after: Option<&RankedHit>| TopHitsRequest {
        sort: match sort.by {
            SortBy::Relevance => vec![sort],
            _ => vec![sort, Sort { by: SortBy::Text(Facet::Image), descending: true }],
        },
        after: after.map(|hit| hit.position.clone()),
        max_hits,
        facets: vec![Facet::Namespace, Facet::Image],
        sums: None,
        planning_context: Arc::new(planning_context()),
    };
    let context = || context(&Arc::default(), &UserInfo::system());
    let find_page = |max_hits: usize, sort: Sort, after: Option<&RankedHit>| {
        top_hits(&corpus.text, &context(), &matches, &request(max_hits, sort, after)).unwrap()
    };
    let full_scan = |max_hits: usize, sort: Sort, after: Option<&RankedHit>| {
        let mut scan = SnapshotScan::begin(&corpus.text, &context(), &matches, request(max_hits, sort, after)).unwrap();
        let mut collected = Vec::new();
        loop {
            let hits = scan.next(301).unwrap();
            if hits.is_empty() {
                return collected;
            }
            collected.extend(hits);
        }
    };
    for (by, descending) in
        [(SortBy::Relevance, true), (SortBy::Text(Facet::Name), false), (SortBy::Text(Facet::Namespace), true)]
    {
        let sort = Sort { by, descending };
        // Executed twice, the second time from the cache.
        for _ in 0..2 {
            let all = find_page(5000, sort, None);
            let counts = |facet: usize| all.facets[facet].iter().map(|(_, count)| count).sum::<u64>();
            assert_eq!(all.hits.iter().map(|hit| hit.position.id).collect::<BTreeSet<_>>(), expected, "{query}");
            assert_eq!((all.total, counts(0)), (expected.len() as u64, expected.len() as u64));
            assert_eq!(counts(1), 2 * expected.len() as u64, "each has two images");
            for max_hits in [0, 1, 20, 511] {
                let best = find_page(max_hits, sort, None);
                assert_eq!(best.hits, all.hits[..max_hits.min(all.hits.len())], "{query}, the best {max_hits}");
                assert_eq!((best.total, &best.facets), (all.total, &all.facets));
            }
            // The pages together are all hits once, in order.
            let (mut pages, mut left) = (Vec::new(), all.total);
            loop {
                let page = find_page(300, sort, pages.last());
                assert_eq!((page.total, page.remaining), (all.total, left));
                if page.hits.is_empty() {
                    break;
                }
                left -= page.hits.len() as u64;
                pages.extend(page.hits);
            }
            assert_eq!(pages, all.hits, "{query}");
            // A full scan returns the same, from any position and up to any limit.
            assert_eq!(full_scan(usize::MAX, sort, None), all.hits, "{query}");
            let (middle, limit) = (all.hits.len() / 3, 100.min(all.hits.len() / 2));
            if let Some(last) = middle.checked_sub(1) {
                assert_eq!(full_scan(limit, sort, Some(&all.hits[last])), all.hits[middle..middle + limit], "{query}");
            }
        }
    }
}

/// The documents were deleted after the hits were found.
#[test]
fn counts_after_the_hits_are_those_of_their_snapshot() {
    let (corpus, _) = segments();
    let (context, matches) = (context(&Arc::default(), &UserInfo::system()), Match::Bare("setting".to_owned()));
    let facets = vec![Facet::Namespace, Facet::Image];
    let request = TopHitsRequest { max_hits: 20, facets, ..TopHitsRequest::total_only() };
    let expected = top_hits(&corpus.text, &context, &matches, &request).unwrap();
    assert!(expected.hits.len() == 20 && expected.facets.iter().all(|counts| !counts.is_empty()));
    let (mut found, docs) = collector::find_hits(&corpus.text, &context, &matches, &request).unwrap();
    assert_eq!((&found.hits, found.total, found.facets.len()), (&expected.hits, expected.total, 0));
    let mut writer: tantivy::IndexWriter = corpus.text.writer(15_000_000).unwrap();
    writer.delete_all_documents().unwrap();
    writer.commit().unwrap();
    corpus.text.reload(crowsnest_store::Seq(1), &|_, _, _| {}).unwrap();
    assert_eq!(top_hits(&corpus.text, &context, &matches, &request).unwrap().total, 0);
    found.add_part(collector::count(&corpus.text, &context, &docs, &request).unwrap());
    assert_eq!(found, expected);
}

#[test]
fn the_closest_name_comes_first() {
    assert_eq!(FLEET.search("checkout", SortBy::Relevance, true)[0], "Deployment/checkout");
    let by_restarts =
        FLEET.search("kind:pod sort:-restarts", SortBy::Number(crate::document::columns::Number::Restarts), true);
    assert_eq!(by_restarts[0], "Pod/checkout-7d9f-abcde");
    let by_name = FLEET.search("kind:pod", SortBy::Text(Facet::Name), false);
    assert_eq!(by_name, ["Pod/checkout-7d9f-abcde", "Pod/payments-0", "Pod/web-0"]);
    let fuzzy = FLEET.search("checkuot~2", SortBy::Relevance, true);
    assert!(fuzzy.contains(&"Deployment/checkout".to_owned()), "{fuzzy:?}");
}

#[test]
fn hits_have_reasons() {
    let planned = plan(&parse("kind:pod crash restarts:>5", &Limits::default()).unwrap(), &planning_context());
    let (_, document) = FLEET.documents.iter().find(|(name, _)| name == "Pod/checkout-7d9f-abcde").unwrap();
    let reasons = DocumentEvaluator::new(document).reasons(&planned.matches);
    let text: Vec<String> = reasons.iter().map(|reason| format!("{}={}", reason.field, reason.value)).collect();
    assert_eq!(text, ["kind=Pod", "reason=CrashLoopBackOff", "restarts=7", "status=CrashLoopBackOff"]);
}

/// A Secret in a store that keeps values of Secrets.
fn secret_with_values() -> Object {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db", "namespace": "shop"},
        "data": {"password": "aHVudGVyMg=="}});
    stored_with_options("member1", 1, &secret, &IngestOptions { secret_values: true, ..IngestOptions::default() })
}

#[test]
fn a_redacted_object_serves_a_document_and_a_hit() {
    let stored = secret_with_values();
    let redacted = RedactedObject::new(&stored).unwrap();
    let (shared, own) = (Document::from_redacted(&redacted).unwrap(), Document::from_object(&stored).unwrap());
    assert_eq!((shared.content(), &shared.keywords), (own.content(), &own.keywords));
    let hit = redacted.into_object();
    assert!(stored.text().contains("aHVudGVyMg") && !hit.text().contains("aHVudGVyMg"), "{}", hit.text());
}

#[rstest]
#[case::a_key("password", true)]
#[case::a_value("aHVudGVyMg", false)]
fn kept_values_of_secrets_are_not_searchable(#[case] query: &str, #[case] found: bool) {
    let document = Document::from_object(&secret_with_values()).unwrap();
    let planned = plan(&parse(query, &Limits::default()).unwrap(), &planning_context());
    assert_eq!(DocumentEvaluator::new(&document).is_match(&planned.matches), found);
}

#[test]
fn unsupported_terms_cause_notices() {
    let planned = plan(&parse("kind:node is:sleepy .spec..x:1", &Limits::default()).unwrap(), &planning_context());
    assert_eq!(planned.notices.len(), 2, "{:?}", planned.notices);
    assert_eq!(FLEET.search("kind:node is:sleepy .spec..x:1", SortBy::Relevance, true), ["Node/n1"]);
}
