//! Compares the cache and text search with the members' objects.

use crate::POLL_INTERVAL;
use crate::host::{ListedObject, SearchResult, Status, columns_of, resources};
use crate::process::Host;
use crate::test_member::{TestMember, Words, kinds, word_of};
use crowsnest_apimachinery::names::Gvr;
use crowsnest_store::ingest;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// A collector with many failures waits up to 45 s, and a lost lease takes time to expire.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Number of words that are searched in full text. All words are searched as labels, which is much faster.
const FULL_TEXT_WORDS: usize = 9;
/// Number of characters of a body that are shown around the first difference.
const SHOWN_CHARS: usize = 160;

/// resourceVersions of the markers, the last writes of a round, by (cluster, resource).
pub type Markers = BTreeMap<(String, String), u64>;

/// Writes a marker, the last object of the round, to each resource of all members.
pub async fn write_markers(members: &[TestMember], words: &mut Words) -> Markers {
    let mut markers = Markers::new();
    for member in members {
        for resource in resources() {
            let version = member.write_marker(&resource.resource, &words.next()).await;
            markers.insert((member.name.clone(), resource.resource.to_string()), version);
        }
    }
    markers
}

/// Waits until the cache is ready, follows all collections, has reached the markers, and has indexed them.
pub async fn wait_until_settled(host: &mut Host, markers: &Markers) -> Status {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let status = host.status().await;
        let reasons = unsettled_reasons(&status, markers);
        if reasons.is_empty() {
            return status;
        }
        assert!(Instant::now() < deadline, "the cache does not settle: {}", reasons.join(", "));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Reasons why the cache is not settled.
fn unsettled_reasons(status: &Status, markers: &Markers) -> Vec<String> {
    let mut reasons: Vec<String> = status.unready.iter().cloned().collect();
    let mut collected = BTreeSet::new();
    for (cluster, resource, version, complete, stale_reason) in &status.collections {
        let key = (cluster.clone(), resource.clone());
        let reached = version.parse::<u64>().unwrap_or(0);
        match (stale_reason, markers.get(&key)) {
            (Some(stale_reason), _) => reasons.push(format!("{resource} of {cluster}: {stale_reason}")),
            (None, _) if !complete => reasons.push(format!("{resource} of {cluster} is incomplete")),
            (None, Some(marker)) if reached < *marker => {
                reasons.push(format!("{resource} of {cluster} is at {version}"))
            }
            _ => {}
        }
        collected.insert(key);
    }
    let uncollected = markers.keys().filter(|key| !collected.contains(*key));
    reasons.extend(uncollected.map(|(cluster, resource)| format!("no replica collects {resource} of {cluster}")));
    if reasons.is_empty() && status.searchable < status.seq {
        reasons.push(format!("text search has reached {} of {}", status.searchable, status.seq));
    }
    reasons
}

/// Describes all differences between the members, the cache and text search; empty if there are none.
pub async fn differences(host: &mut Host, members: &[TestMember], words: &Words) -> String {
    let mut text = String::new();
    // The objects whose current state contains the word.
    let mut hits_by_word: BTreeMap<&str, Vec<String>> =
        words.recent().map(|word| (word.as_str(), Vec::new())).collect();
    let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for member in members {
        for resource in resources() {
            let (cluster, resource) = (member.name.as_str(), &*resource.resource);
            let objects = member.objects(resource).await;
            let cached: Vec<ListedObject> = host.request(&["list", cluster, resource]).await;
            compare(&mut text, &format!("{cluster} {resource}"), &objects, &cached);
            let mut all = Vec::new();
            for object in &objects {
                let (namespace, name) = namespaced_name(object);
                let hit = format!("{cluster}/{resource}/{namespace}/{name}");
                if let Some(hits) = word_of(object).and_then(|word| hits_by_word.get_mut(word)) {
                    hits.push(hit.clone());
                }
                all.push(hit);
            }
            all.sort();
            let kind = kinds().iter().find(|(_, plural)| *plural == resource).map(|(kind, _)| kind.to_lowercase());
            expected.insert(format!("cluster:{cluster} kind:{}", kind.unwrap()), all);
        }
    }
    let step = hits_by_word.len().div_ceil(FULL_TEXT_WORDS).max(1);
    for (nth, (word, hits)) in hits_by_word.into_iter().enumerate() {
        expected.insert(format!("label:word={word}"), hits.clone());
        if nth % step == 0 {
            let field = if nth % (3 * step) == 0 { "" } else { "content:" };
            expected.insert(format!("{field}{word}"), hits);
        }
    }
    let mut command = vec!["search"];
    command.extend(expected.keys().map(String::as_str));
    let found: BTreeMap<String, SearchResult> = host.request(&command).await;
    for (query, hits) in &expected {
        let found = &found[query];
        if found.hits != *hits || found.total != hits.len() as u64 || !found.skipped.is_empty() {
            let SearchResult { hits: cached, total, skipped } = found;
            let (missing, unexpected): (Vec<_>, Vec<_>) = (
                hits.iter().filter(|hit| !cached.contains(hit)).collect(),
                cached.iter().filter(|hit| !hits.contains(hit)).collect(),
            );
            writeln!(
                text,
                "search {query:?} counts {total} and returns {} hits instead of {}: missing {missing:?}, unexpected \
                {unexpected:?}, skipped {skipped:?}",
                cached.len(),
                hits.len()
            )
            .unwrap();
        }
    }
    text
}

fn namespaced_name(object: &Value) -> (&str, &str) {
    let metadata = &object["metadata"];
    (metadata["namespace"].as_str().unwrap_or_default(), metadata["name"].as_str().unwrap())
}

/// The form in which the cache should list an object of a member: its bytes after ingest.
fn expected_listing(object: &Value) -> ListedObject {
    let json = object.to_string();
    let api_version = object["apiVersion"].as_str().unwrap();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    // The resource only affects which values are withheld, so it can be empty.
    let expected =
        ingest::ExpectedType { resource: &Gvr::new(group, version, ""), kind: object["kind"].as_str().unwrap() };
    let draft = ingest::read(ingest::RawObject::new(&json), expected, &ingest::IngestOptions::default()).unwrap();
    let metadata = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    ListedObject {
        namespace: metadata("namespace"),
        name: metadata("name"),
        uid: metadata("uid"),
        resource_version: metadata("resourceVersion"),
        body: canonical(object),
        columns: columns_of(&draft),
    }
}

/// JSON in which the keys of all objects are sorted.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<&String, &Value> = fields.iter().collect();
            let field =
                |(name, value): (&String, &Value)| format!("{}:{}", Value::from(name.as_str()), canonical(value));
            format!("{{{}}}", fields.into_iter().map(field).collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

fn compare(text: &mut String, collection: &str, objects: &[Value], cached: &[ListedObject]) {
    let mut expected: BTreeMap<(String, String), ListedObject> = objects
        .iter()
        .map(expected_listing)
        .map(|object| ((object.namespace.clone(), object.name.clone()), object))
        .collect();
    let mut seen = BTreeSet::new();
    for object in cached {
        let body: Value = serde_json::from_str(&object.body).unwrap();
        let cached = ListedObject { body: canonical(&body), ..object.clone() };
        let key = (object.namespace.clone(), object.name.clone());
        let object_name = format!("{collection} {}/{}", key.0, key.1);
        if !seen.insert(key.clone()) {
            writeln!(text, "{object_name} exists twice").unwrap();
            continue;
        }
        match expected.remove(&key) {
            None => writeln!(text, "{object_name} should not exist, version {}", object.resource_version).unwrap(),
            Some(expected) if expected != cached => {
                let text_of = |listed: &ListedObject| {
                    format!("{} {} {} {}", listed.uid, listed.resource_version, listed.columns, listed.body)
                };
                let (expected, cached) = (text_of(&expected), text_of(&cached));
                let same = expected.bytes().zip(cached.bytes()).take_while(|(a, b)| a == b).count();
                let from = same.saturating_sub(SHOWN_CHARS / 2);
                let shown = |text: &str| text.chars().skip(from).take(SHOWN_CHARS).collect::<String>();
                writeln!(
                    text,
                    "{object_name} differs:\n  member …{}…\n  cache  …{}…",
                    shown(&expected),
                    shown(&cached)
                )
                .unwrap();
            }
            Some(_) => {}
        }
    }
    for ((namespace, name), object) in expected {
        writeln!(text, "{collection} {namespace}/{name} is missing, version {}", object.resource_version).unwrap();
    }
}
