//! Compares the cache and text search with the members' objects.

use crate::LOOK_EVERY;
use crate::host::{Found, Listed, Status, columns_of, resources};
use crate::process::Host;
use crate::site::{Site, Words, kinds, word_of};
use crowsnest_apimachinery::names::Gvr;
use crowsnest_store::ingest;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// A collector with many failures waits up to 45 s, and a lost lease takes time to expire.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);
/// Number of words searched in full text, which is much slower than searching labels; all words are searched as
/// labels.
const WORDS: usize = 9;
/// Characters of a body shown around the first difference.
const AROUND: usize = 160;

/// (cluster, resource) → resourceVersion of the last write to it.
pub type Marks = BTreeMap<(String, String), u64>;

/// Writes the last objects of the round to all members.
pub async fn mark(sites: &[Site], words: &mut Words) -> Marks {
    let mut marks = Marks::new();
    for site in sites {
        for resource in resources() {
            let version = site.mark(&resource.resource, &words.next()).await;
            marks.insert((site.name.clone(), resource.resource.to_string()), version);
        }
    }
    marks
}

/// Waits until the cache is ready, follows everything, has reached the marks, and has indexed them.
pub async fn settled(host: &mut Host, marks: &Marks) -> Status {
    let deadline = Instant::now() + SETTLED_WITHIN;
    loop {
        let status = host.status().await;
        let missing = missing(&status, marks);
        if missing.is_empty() {
            return status;
        }
        assert!(Instant::now() < deadline, "the cache does not settle: {}", missing.join(", "));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn missing(status: &Status, marks: &Marks) -> Vec<String> {
    let mut missing: Vec<String> = status.unready.iter().cloned().collect();
    let mut known = BTreeSet::new();
    for (cluster, resource, version, complete, trouble) in &status.collections {
        let key = (cluster.clone(), resource.clone());
        let reached = version.parse::<u64>().unwrap_or(0);
        match (trouble, marks.get(&key)) {
            (Some(trouble), _) => missing.push(format!("{resource} of {cluster}: {trouble}")),
            (None, _) if !complete => missing.push(format!("{resource} of {cluster} is incomplete")),
            (None, Some(mark)) if reached < *mark => missing.push(format!("{resource} of {cluster} is at {version}")),
            _ => {}
        }
        known.insert(key);
    }
    let unknown = marks.keys().filter(|key| !known.contains(*key));
    missing.extend(unknown.map(|(cluster, resource)| format!("no replica collects {resource} of {cluster}")));
    if missing.is_empty() && status.searchable < status.seq {
        missing.push(format!("text search has reached {} of {}", status.searchable, status.seq));
    }
    missing
}

/// Compares everything; empty if there are no differences.
pub async fn differences(host: &mut Host, sites: &[Site], words: &Words) -> String {
    let mut text = String::new();
    // Expected objects of each word, in their current state.
    let mut places: BTreeMap<&str, Vec<String>> = words.recent().map(|word| (word.as_str(), Vec::new())).collect();
    let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for site in sites {
        for resource in resources() {
            let (cluster, resource) = (site.name.as_str(), &*resource.resource);
            let held = site.objects(resource).await;
            let cached: Vec<Listed> = host.ask(&["list", cluster, resource]).await;
            compare(&mut text, &format!("{cluster} {resource}"), &held, &cached);
            let mut all = Vec::new();
            for object in &held {
                let (namespace, name) = namespaced_name(object);
                let hit = format!("{cluster}/{resource}/{namespace}/{name}");
                if let Some(hits) = word_of(object).and_then(|word| places.get_mut(word)) {
                    hits.push(hit.clone());
                }
                all.push(hit);
            }
            all.sort();
            let kind = kinds().iter().find(|(_, plural)| *plural == resource).map(|(kind, _)| kind.to_lowercase());
            expected.insert(format!("cluster:{cluster} kind:{}", kind.unwrap()), all);
        }
    }
    let some = places.len().div_ceil(WORDS).max(1);
    for (nth, (word, hits)) in places.into_iter().enumerate() {
        expected.insert(format!("label:turn={word}"), hits.clone());
        if nth % some == 0 {
            let field = if nth % (3 * some) == 0 { "" } else { "content:" };
            expected.insert(format!("{field}{word}"), hits);
        }
    }
    let mut question = vec!["search"];
    question.extend(expected.keys().map(String::as_str));
    let found: BTreeMap<String, Found> = host.ask(&question).await;
    for (query, hits) in &expected {
        let found = &found[query];
        if found.hits != *hits || found.total != hits.len() as u64 || !found.skipped.is_empty() {
            let Found { hits: cached, total, skipped } = found;
            let (lost, more): (Vec<_>, Vec<_>) = (
                hits.iter().filter(|hit| !cached.contains(hit)).collect(),
                cached.iter().filter(|hit| !hits.contains(hit)).collect(),
            );
            writeln!(
                text,
                "search {query:?} counts {total} and shows {}, not {}: not found {lost:?}, found too much \
                {more:?}, skipped {skipped:?}",
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

/// The expected cached object, using the same ingest of the same bytes.
fn as_listed(object: &Value) -> Listed {
    let raw = RawValue::from_string(object.to_string()).unwrap();
    let api_version = object["apiVersion"].as_str().unwrap();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    // The resource only affects withheld values.
    let expected = ingest::Expected { resource: &Gvr::new(group, version, ""), kind: object["kind"].as_str().unwrap() };
    let draft = ingest::read(&raw, expected, &ingest::Keep::default()).unwrap();
    let metadata = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    Listed {
        namespace: metadata("namespace"),
        name: metadata("name"),
        uid: metadata("uid"),
        resource_version: metadata("resourceVersion"),
        body: canonical(object),
        columns: columns_of(&draft),
    }
}

/// JSON with the keys of every object in order.
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

fn compare(text: &mut String, what: &str, held: &[Value], cached: &[Listed]) {
    let mut held: BTreeMap<(String, String), Listed> =
        held.iter().map(as_listed).map(|object| ((object.namespace.clone(), object.name.clone()), object)).collect();
    let mut seen = BTreeSet::new();
    for object in cached {
        let body: Value = serde_json::from_str(&object.body).unwrap();
        let cached = Listed { body: canonical(&body), ..object.clone() };
        let key = (object.namespace.clone(), object.name.clone());
        let at = format!("{what} {}/{}", key.0, key.1);
        if !seen.insert(key.clone()) {
            writeln!(text, "{at} exists twice").unwrap();
            continue;
        }
        match held.remove(&key) {
            None => writeln!(text, "{at} should not exist, version {}", object.resource_version).unwrap(),
            Some(held) if held != cached => {
                let part = |of: &Listed| format!("{} {} {} {}", of.uid, of.resource_version, of.columns, of.body);
                let (held, cached) = (part(&held), part(&cached));
                let same = held.bytes().zip(cached.bytes()).take_while(|(a, b)| a == b).count();
                let from = same.saturating_sub(AROUND / 2);
                let shown = |text: &str| text.chars().skip(from).take(AROUND).collect::<String>();
                writeln!(text, "{at} differs:\n  member …{}…\n  cache  …{}…", shown(&held), shown(&cached)).unwrap();
            }
            Some(_) => {}
        }
    }
    for ((namespace, name), object) in held {
        writeln!(text, "{what} {namespace}/{name} is missing, version {}", object.resource_version).unwrap();
    }
}
