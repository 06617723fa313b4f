//! The cache: queries, documents of the text index, encoding of records, and the fan-out of changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use crowsnest_query::{Limits, Query, parse};
use crowsnest_search::document::Document;
use crowsnest_search::plan::{ClusterProperties, GroupKind, KindsByName, PlanningContext, plan};
use crowsnest_store::codec::Codec;
use crowsnest_store::record::Header;
use crowsnest_store::tail::Tail;
use crowsnest_store::{Change, ChangeKind, Follower, Object, Record, Seq, Topic};
use serde_json::value::{RawValue, to_raw_value};

use super::fixtures::{ingest_pod, member_name, pod_resource, pods, stored_pods, yaml};
use super::hot_path::HotPath;

const QUERIES: &str = include_str!("data/queries.yaml");
const KINDS: &str = include_str!("../../index/search/tests/fixtures/corpus/kinds.yaml");

const CLUSTERS: u32 = 10;
/// Unix seconds at which queries are planned.
const NOW: i64 = 1_790_000_000;
/// The kind of the pods in the codec.
const KIND: &str = "/Pod";
/// More samples than the codec needs for a dictionary.
const MAX_SAMPLES: usize = 1000;
const FOLLOWERS: usize = 100;

pub fn hot_paths() -> Result<Vec<HotPath>> {
    let objects = stored_pods()?;
    let pod = objects.first().context("no pods")?.clone();
    let raw = to_raw_value(pods()?.first().context("no pods")?)?;
    let codec = Arc::new(trained_codec(&objects)?);
    Ok(vec![
        query_parsing()?,
        query_planning()?,
        document(pod.clone()),
        record_encoding(Arc::clone(&codec), raw),
        record_decoding(codec, &pod)?,
        fan_out(pod),
    ])
}

fn query_parsing() -> Result<HotPath> {
    let texts: Vec<String> = yaml(QUERIES)?;
    Ok(HotPath::new("cache/query-parsing", move || parse_queries(&texts)))
}

fn parse_queries(texts: &[String]) -> Result<Vec<Query>> {
    let mut queries = Vec::new();
    for text in texts {
        let query = parse(text, &Limits::default())?;
        ensure!(query.notices.is_empty(), "{text}: {:?}", query.notices);
        queries.push(query);
    }
    Ok(queries)
}

fn query_planning() -> Result<HotPath> {
    let queries = parse_queries(&yaml::<Vec<String>>(QUERIES)?)?;
    let cluster = |number: u32| ClusterProperties { name: member_name(number), ..ClusterProperties::default() };
    let clusters = (0..CLUSTERS).map(cluster).collect();
    let fleet = PlanningContext { clusters, kinds: Arc::new(kinds()?), now: NOW };
    Ok(HotPath::new("cache/query-planning", move || {
        let mut plans = Vec::new();
        for query in &queries {
            let plan = plan(query, &fleet);
            ensure!(plan.notices.is_empty(), "{:?}", plan.notices);
            plans.push(plan);
        }
        Ok(plans)
    }))
}

/// Kinds by all their names.
fn kinds() -> Result<KindsByName> {
    // Decoded directly, because the short name `no` would be a boolean in an untyped value.
    let names: BTreeMap<String, Vec<String>> = serde_saphyr::from_str(KINDS)?;
    let mut kinds = KindsByName::new();
    for (qualified, aliases) in &names {
        let (kind, group) = qualified.split_once('.').unwrap_or((qualified.as_str(), ""));
        for name in aliases.iter().map(String::as_str).chain([kind]) {
            let group_kind = GroupKind { group: group.to_owned(), kind: kind.to_owned() };
            kinds.entry(name.to_owned()).or_default().insert(group_kind);
        }
    }
    Ok(kinds)
}

/// Columns and text of a pod for the text index.
fn document(pod: Object) -> HotPath {
    HotPath::new("cache/document", move || {
        let document = Document::from_object(&pod)?;
        ensure!(!document.content().is_empty(), "the document has no text");
        Ok(document)
    })
}

/// A codec with a dictionary for pods.
fn trained_codec(pods: &[Object]) -> Result<Codec> {
    let codec = Codec::default();
    for pod in pods.iter().cycle().take(MAX_SAMPLES) {
        if let (_, Some(samples)) = codec.pack(KIND, &pod.body)? {
            let dictionary = samples.train().context("the pods have too little in common")?;
            codec.install(1, KIND, &dictionary);
            return Ok(codec);
        }
    }
    bail!("{MAX_SAMPLES} samples are too few for a dictionary")
}

/// Encodes the JSON of a pod as the columns of its row.
fn record_encoding(codec: Arc<Codec>, raw: Box<RawValue>) -> HotPath {
    let resource = pod_resource();
    HotPath::new("cache/record-encoding", move || {
        let draft = ingest_pod(&raw, &resource)?;
        let labels = serde_json::to_string(&draft.labels)?;
        let header = serde_json::to_string(&draft.details)?;
        let (packed, _) = codec.pack(KIND, &draft.body)?;
        Ok((labels, header, packed))
    })
}

/// Decodes the columns of a row to the record and the body.
fn record_decoding(codec: Arc<Codec>, pod: &Object) -> Result<HotPath> {
    let raw: &RawValue = serde_json::from_slice(&pod.body)?;
    let draft = ingest_pod(raw, &pod_resource())?;
    let labels = serde_json::to_string(&draft.labels)?;
    let header = serde_json::to_string(&draft.details)?;
    let (packed, _) = codec.pack(KIND, &pod.body)?;
    let record = Record::clone(&pod.record);
    Ok(HotPath::new("cache/record-decoding", move || {
        let body = codec.unpack(&packed.bytes, packed.dictionary)?;
        let labels = serde_json::from_str(&labels)?;
        let record = Record { labels, header: Header::from_encoded(&header), ..record.clone() };
        ensure!(record.printed_object()?.status.is_some(), "the pod has no status");
        Ok((record, body))
    }))
}

/// Followers of a tail, and a change that all of them receive.
struct FanOut {
    tail: Arc<Tail>,
    followers: Vec<Follower>,
    change: Change,
}

impl FanOut {
    fn new(pod: &Object) -> Self {
        let tail = Arc::new(Tail::new(Seq(0), 1024, 1 << 20));
        let (namespace, name) = (Some(&pod.record.key.namespace), Some(&pod.record.key.name));
        let scopes = [(None, None), (namespace, None), (None, name), (namespace, name)];
        let topic = |(namespace, name): &(Option<&Arc<str>>, Option<&Arc<str>>)| Topic {
            resource: pod_resource(),
            namespace: namespace.cloned(),
            name: name.cloned(),
        };
        let topics = scopes.iter().cycle().take(FOLLOWERS).map(topic);
        let followers = topics.map(|topic| tail.follow_topic(Seq(0), topic)).collect();
        let change = Change { seq: Seq(1), kind: ChangeKind::Modified, object: pod.clone(), previous: None };
        Self { tail, followers, change }
    }
}

/// Publishes a change, which the followers of topics read.
fn fan_out(pod: Object) -> HotPath {
    HotPath::with_input(
        "cache/fan-out",
        move || Ok(FanOut::new(&pod)),
        |FanOut { tail, mut followers, change }: FanOut| {
            ensure!(tail.publish(vec![change]), "the tail misses earlier changes");
            let mut received = 0;
            for follower in &mut followers {
                received += follower.ready_now()?.len();
            }
            ensure!(received == FOLLOWERS, "{received} of {FOLLOWERS} followers received the change");
            Ok(followers)
        },
    )
}
