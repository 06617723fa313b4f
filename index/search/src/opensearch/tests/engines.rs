//! Compares responses of real engines with those of the text index: hits, order, scores, totals, facets and pages.

use super::documents;
use super::samples::{self, generate};
use crate::authorization::RbacRules;
use crate::collect::TopHitsRequest;
use crate::execute::evaluate::DocumentEvaluator;
use crate::opensearch::aggregations::{CountedField, find_broad_phrase_ends, phrase_end_searches};
use crate::opensearch::document::EngineDocument;
use crate::opensearch::dsl::query::Query;
use crate::opensearch::dsl::{TranslationInputs, phrase_ends, translate};
use crate::opensearch::model::{Facet, Match, Number, Rank, RankedHit, Sort, SumsRequest, ValueAmounts};
use crate::opensearch::node::Node;
use crate::opensearch::order::Order;
use crate::opensearch::request::Search;
use crate::opensearch::response::SearchResponse;
use crate::opensearch::scope;
use crate::opensearch::template::{IndexSize, template};
use crate::plan::relations::resolve;
use crate::plan::{TimeScope, plan};
use crate::tests::corpus::{fixture, planning_context};
use crate::tests::properties::{self, rules_from};
use crate::tests::{Corpus, ReadableDocuments, fleet};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_query::{Limits, parse};
use crowsnest_store::CollectionKey;
use crowsnest_store::fixtures::{cluster, resource_of};
use futures::executor::block_on;
use rstest::rstest;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const FACETS: [Facet; 5] = [Facet::Kind, Facet::Namespace, Facet::Image, Facet::Reason, Facet::LabelKey];
const SORTS: [&str; 12] = [
    "relevance",
    "name",
    "-name",
    "restarts name",
    "-restarts",
    "image",
    "-image kind",
    "region",
    "-region relevance",
    "exit",
    "relevance -zone",
    "-label created",
];
/// Hits that are compared.
const COMPARED_HITS: usize = 3_000;

#[derive(Deserialize)]
struct Entry {
    cluster: String,
    object: Option<Value>,
}

#[derive(Deserialize)]
struct QueryCase {
    query: String,
}

/// The number in an environment variable.
fn env_number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |number| number.parse().unwrap())
}

/// Objects of all fixtures, and `CROWSNEST_ENGINE_OBJECTS` generated ones, in eight clusters.
fn objects() -> Vec<(&'static str, Value)> {
    let clusters = ["member1", "member2", "member3", "m4", "m5", "m6", "m7", "karmada"];
    let entries: Vec<Entry> = serde_saphyr::from_str(&fixture("objects")).unwrap();
    let cluster_name =
        |name: &str| clusters.into_iter().find(|cluster_name| *cluster_name == name).unwrap_or("member1");
    let mut objects: Vec<(&'static str, Value)> =
        entries.into_iter().filter_map(|entry| Some((cluster_name(&entry.cluster), entry.object?))).collect();
    objects.extend(fleet());
    objects.extend(documents::objects().into_iter().map(|(_, object)| ("member2", object)));
    let generated = generate(samples::object(), env_number("CROWSNEST_ENGINE_OBJECTS", 600)).into_iter().enumerate();
    objects.extend(generated.map(|(nth, object)| (clusters[nth % 7], object)));
    objects.extend(generate(properties::some_fleet(), 20).into_iter().flatten());
    objects
}

/// Queries of all fixtures, and `CROWSNEST_ENGINE_QUERIES` generated ones.
fn queries() -> Vec<String> {
    let count = env_number("CROWSNEST_ENGINE_QUERIES", 100);
    let cases: Vec<QueryCase> = serde_saphyr::from_str(&fixture("queries")).unwrap();
    let mut queries: Vec<String> = cases.into_iter().map(|case| case.query).collect();
    queries.extend(limit_queries());
    queries.extend(generate(samples::query(), count));
    queries.extend(generate(properties::query(), count / 3));
    queries.extend(generate(properties::relation(), count / 10));
    queries
}

/// Queries near the limits of the language, which an engine must accept.
fn limit_queries() -> Vec<String> {
    let word = "crashloopbackoffofeverythingandmore-of-all-the-deployments-there-are";
    // A repeated character would be refused: determinizing such a pattern takes quadratic effort.
    let long = (0..700).map(|nth| nth.to_string()).collect::<Vec<_>>().join("-");
    let bare = (0..170).map(|nth| format!("web-{nth}")).collect::<Vec<_>>().join(" OR ");
    vec![
        format!("{word}~2"),
        format!("name:{word}~2"),
        format!("name:*{long}*"),
        format!("image:{long}"),
        "c".repeat(2_000),
        "name:/a.{16}/".to_owned(),
        "name:/(\\w{2}[-.]){3}/".to_owned(),
        format!("content:{}", "*a".repeat(20)),
        format!("name:{}", ["a", "b", "c"].map(|part| part.repeat(300)).join(",")),
        bare,
    ]
}

struct Fleet {
    node: Node,
    corpus: Corpus,
    collections: BTreeSet<CollectionKey>,
}

impl Fleet {
    fn new(node: Node, objects: &[(&str, Value)], shards: u32) -> Self {
        let corpus = Corpus::new(objects);
        node.request("PUT", "/ix", &template(IndexSize { shards, replicas: 0 }).to_string());
        let mut bulk = String::new();
        for (_, document) in &corpus.documents {
            bulk.push_str(&format!("{}\n", json!({"index": {"_id": document.id.to_string()}})));
            bulk.push_str(&format!("{}\n", serde_json::to_string(&EngineDocument::from_document(document)).unwrap()));
        }
        let written = node.request("POST", "/ix/_bulk?refresh=true", &bulk);
        let failed: Vec<&Value> =
            written["items"].as_array().unwrap().iter().filter(|item| item["index"]["status"] != 201).collect();
        assert!(failed.is_empty(), "{failed:?}");
        let collection_key = |(name, object): &(&str, Value)| CollectionKey::new(cluster(name), resource_of(object));
        Self { node, corpus, collections: objects.iter().map(collection_key).collect() }
    }

    fn readable(&self) -> ReadableDocuments<'_> {
        ReadableDocuments(self.corpus.documents.iter().map(|(_, document)| document).collect())
    }

    /// Returns those of the ids `among` whose manifests meet the condition.
    fn examine(&self, matches: &Match, among: &BTreeSet<u64>) -> BTreeSet<u64> {
        let candidates = self.corpus.documents.iter().filter(|(_, document)| among.contains(&document.id));
        candidates
            .filter(|(_, document)| DocumentEvaluator::new(document).is_match(matches))
            .map(|(_, document)| document.id)
            .collect()
    }

    /// The condition for the text index, with paths looked up in manifests.
    fn resolve_paths(&self, matches: &Match) -> Match {
        let all = self.corpus.documents.iter().map(|(_, document)| document.id).collect();
        match matches.needs_bodies() {
            true => matches.without_paths().and(Match::Ids(Arc::new(self.examine(matches, &all)))),
            false => matches.clone(),
        }
    }

    /// Score of a hit by direct evaluation.
    fn score(&self, hit: &RankedHit, matches: &Match) -> f32 {
        let document = &self.corpus.documents[hit.position.id as usize - 1].1;
        DocumentEvaluator::new(document).score(matches)
    }

    fn search(&self, search: &Search<'_>) -> SearchResponse {
        let response = self.node.request("POST", "/ix/_search", &search.body().unwrap().to_string());
        let read = SearchResponse::parse(search, response.to_string().as_bytes()).unwrap();
        assert_eq!(read.partial, []);
        read
    }

    /// Translates the condition with the requests and examinations of manifests that its translation depends on.
    fn translate_examined(&self, matches: &Match, permissions: &Query) -> (Query, BTreeSet<String>) {
        let mut inputs = TranslationInputs::default();
        for (ends, body) in phrase_end_searches(&phrase_ends(matches)) {
            let response = self.node.request("POST", "/ix/_search", &body.to_string());
            inputs.broad_phrase_ends.extend(find_broad_phrase_ends(&ends, &response));
        }
        let first = translate(matches, &inputs).unwrap();
        let Some(candidates) = first.candidates else { return (first.query, first.notices) };
        let order = Order::new(&[], &planning_context()).unwrap();
        let search = Search {
            matches: &candidates,
            permissions: Some(permissions),
            order: &order,
            after: None,
            max_hits: COMPARED_HITS,
            counts: &[],
            timeout: Duration::from_secs(60),
        };
        let ids = self.pages(&search, COMPARED_HITS, usize::MAX).iter().map(|hit| hit.position.id).collect();
        inputs.examined = Some(Arc::new(self.examine(matches, &ids)));
        let second = translate(matches, &inputs).unwrap();
        (second.query, second.notices)
    }

    /// The first hits of a search, page by page.
    fn pages(&self, search: &Search<'_>, size: usize, limit: usize) -> Vec<RankedHit> {
        let mut hits: Vec<RankedHit> = Vec::new();
        loop {
            let after = hits.last().map(|hit| hit.position.clone());
            let page = self.search(&Search { after: after.as_ref(), max_hits: size, counts: &[], ..*search });
            hits.extend(page.hits);
            if !page.has_more || hits.len() >= limit {
                hits.truncate(limit);
                return hits;
            }
        }
    }
}

/// Counts of a facet, ordered by value.
fn counts_by_value(values: &[(Arc<str>, u64)]) -> BTreeMap<String, u64> {
    values.iter().map(|(value, count)| (value.to_string(), *count)).collect()
}

/// Positions of hits, for comparisons.
fn positions(hits: &[RankedHit]) -> Vec<(Vec<Rank>, String, u64)> {
    hits.iter().map(|hit| (hit.position.ranks.clone(), hit.position.name.clone(), hit.position.id)).collect()
}

/// Differences between both responses to one query.
fn differences(
    fleet: &Fleet,
    text: &str,
    sort: &str,
    rbac_rules: &Arc<RbacRules>,
    caller: &UserInfo,
    page: Option<usize>,
) -> Vec<String> {
    let query = parse(text, &Limits::default()).unwrap();
    let planned = plan(&query, &planning_context());
    let has_changes = planned.matches.contains(&|part| matches!(part, Match::Changed(_)));
    if planned.scope != TimeScope::Now || has_changes {
        return Vec::new();
    }
    let matches = block_on(resolve(planned.matches, &mut fleet.readable())).unwrap();
    let column = |name: &str| Sort::by_field(name.trim_start_matches('-'), name.starts_with('-')).unwrap();
    let sort: Vec<Sort> = sort.split(' ').map(column).collect();
    let summed = SumsRequest { facet: FACETS[0], numbers: vec![Number::CpuRequest, Number::MemoryRequest] };
    let request = TopHitsRequest {
        sort: sort.clone(),
        after: None,
        max_hits: COMPARED_HITS,
        facets: FACETS.to_vec(),
        sums: Some(summed.clone()),
        planning_context: Arc::new(planning_context()),
    };
    let expected = fleet.corpus.find_top_hits(fleet.resolve_paths(&matches), rbac_rules, caller, &request);
    let readable = scope::filter(rbac_rules.for_caller(caller).scope_terms(&fleet.collections)).unwrap();
    let (translated, notices) = fleet.translate_examined(&matches, &readable);
    let order = Order::new(&sort, &planning_context()).unwrap();
    let mut counts = FACETS.map(CountedField::Facet);
    counts[0] = CountedField::FacetWithSums(summed);
    let search = Search {
        matches: &translated,
        permissions: Some(&readable),
        order: &order,
        after: None,
        max_hits: COMPARED_HITS,
        counts: &counts,
        timeout: Duration::from_secs(60),
    };
    let response = fleet.search(&search);
    let mut messages = Vec::new();
    let ids = |hits: &[RankedHit]| hits.iter().map(|hit| hit.position.id).collect::<BTreeSet<_>>();
    if ids(&response.hits) != ids(&expected.hits) || response.total != expected.total {
        let (has, lacks) = (ids(&response.hits), ids(&expected.hits));
        let name = |id: &u64| fleet.corpus.documents[*id as usize - 1].0.clone();
        let more: Vec<String> = has.difference(&lacks).take(3).map(name).collect();
        let less: Vec<String> = lacks.difference(&has).take(3).map(name).collect();
        messages.push(format!("{} hits, not {}: {more:?} more, {less:?} less", response.total, expected.total));
    } else if positions(&response.hits) != positions(&expected.hits) {
        let differ = positions(&response.hits).into_iter().zip(positions(&expected.hits)).find(|(a, b)| a != b);
        messages.push(format!("another order: {differ:?}"));
    }
    if order.returns_relevance() && messages.is_empty() {
        let without_paths = matches.without_paths();
        let scored = |hit: &&RankedHit| hit.score != fleet.score(hit, &without_paths);
        messages.extend(response.hits.iter().find(scored).map(|hit| format!("another score: {hit:?}")));
    }
    for (nth, facet) in FACETS.iter().enumerate() {
        let expected = expected.facets.get(nth).map(|values| counts_by_value(values)).unwrap_or_default();
        if counts_by_value(&response.counts[nth].values) != expected {
            messages.push(format!("{facet:?}: {:?}, not {expected:?}", response.counts[nth]));
        }
    }
    let by_value =
        |sums: &[ValueAmounts<i64>]| sums.iter().map(|sums| sums.iter().cloned().collect()).collect::<Vec<_>>();
    let (sums, expected_sums): (Vec<BTreeMap<Arc<str>, i64>>, _) =
        (by_value(&response.counts[0].sums), by_value(&expected.sums));
    if sums != expected_sums {
        messages.push(format!("sums {sums:?}, not {expected_sums:?}"));
    }
    if notices.len() != expected.notices.len() {
        messages.push(format!("notices {notices:?}, not {:?}", expected.notices));
    }
    if let Some(page) = page
        && positions(&fleet.pages(&search, page, COMPARED_HITS)) != positions(&response.hits)
    {
        messages.push("other hits page by page".to_owned());
    }
    messages
        .into_iter()
        .map(|what| format!("{text} sort:{:?}\n    {what}\n    {}", sort, translated.filter()))
        .collect()
}

#[rstest]
#[case::opensearch_2("opensearch-2", 1)]
#[case::opensearch_3("opensearch-3", 3)]
#[case::elasticsearch_7("elasticsearch-7", 1)]
#[case::elasticsearch_8("elasticsearch-8", 2)]
#[case::elasticsearch_9("elasticsearch-9", 1)]
#[ignore = "starts search engines: run .ci/engines test"]
fn engines_find_what_the_text_index_finds(#[case] name: &str, #[case] shards: u32) {
    let Some(node) = Node::start(name) else { return };
    let fleet = Fleet::new(node, &objects(), shards);
    let everyone = Arc::new(RbacRules::default());
    let mut messages = Vec::new();
    let queries = queries();
    for (nth, query) in queries.iter().enumerate() {
        let page = (nth % 10 == 0).then_some(97);
        messages.extend(differences(&fleet, query, SORTS[nth % SORTS.len()], &everyone, &UserInfo::system(), page));
    }
    let ann = UserInfo::new("ann", ["system:authenticated"]);
    for (nth, allowed) in generate(properties::some_grants(), 20).iter().enumerate() {
        let rbac_rules = Arc::new(rules_from(allowed));
        for query in queries.iter().skip(nth).step_by(80) {
            messages.extend(differences(&fleet, query, SORTS[nth % SORTS.len()], &rbac_rules, &ann, None));
        }
    }
    assert!(messages.is_empty(), "{} of {} differ:\n{}", messages.len(), queries.len(), messages.join("\n"));
}
