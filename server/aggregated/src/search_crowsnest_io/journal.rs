//! `journal`: changes of an object, with their causes. Entries are Events of the control plane, found by search and,
//! after the API server has deleted them, in the cache's history; the causes of each are followed to the root cause. The
//! caller sees entries of readable Events. The text of an entry names its cause even if the caller may not read the
//! cause or it is no longer kept.

use crowsnest_apimachinery::status::ApiError;
use std::collections::{BTreeMap, HashMap};

use axum::response::Response;
use crowsnest_api::constants::annotation;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::{CollectionKey, GlobalCache, Object, RecordKey};
use crowsnest_query::parse_time;
use crowsnest_search::SearchRequest;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::call::{SearchCall, typed_response};
use super::definition;
use super::hits::skipped;
use super::openapi::{Parameter, name_of, ref_to};
use super::operation::SearchOperation;
use super::parameters::{Parameters, invalid_parameter};

use crate::resource::Definition;
use crate::resource::openapi::Document;
use crate::resource::schema::{body, boolean, date_time, integer, list, object, string};

/// Default and maximum number of entries about the object.
const DEFAULT_ENTRIES: usize = 100;
const MAX_ENTRIES: usize = 1000;
/// Default period before and after a time.
const DEFAULT_WINDOW_SECONDS: f64 = 300.0;
/// Maximum length of a chain of causes.
const MAX_CAUSES: usize = 16;

/// An entry of the response.
struct Entry {
    at: String,
    /// ID of the entry that caused this one.
    cause_id: Option<String>,
    body: Value,
}

impl Entry {
    /// The ID and entry of an Event; `None` if the Event is not an entry of the journal.
    fn from_event(object: &Object) -> Result<Option<(String, Self)>, ApiError> {
        let event: Value = object.parse().map_err(ApiError::internal)?;
        let annotation_value = |key: &str| {
            let text = event["metadata"]["annotations"][key].as_str()?;
            serde_json::from_str::<Value>(text).ok()
        };
        let (Some(cause), Some(entry)) =
            (annotation_value(annotation::JOURNAL_CAUSE), annotation_value(annotation::JOURNAL_ENTRY))
        else {
            return Ok(None);
        };
        let key = &object.record.key;
        // Without this check, a user who may write in this namespace only could forge entries about objects in others.
        if *key.namespace != *subject_namespace(&event["involvedObject"]) {
            return Ok(None);
        }
        let id = format!("{}/{}", key.namespace, key.name);
        let at = event["eventTime"].as_str().unwrap_or_default().to_owned();
        let cause_id = cause["event"].as_str().map(str::to_owned);
        let mut body = json!({
            "id": id, "at": at, "action": event["action"], "reason": event["reason"], "type": event["type"],
            "subject": event["involvedObject"], "message": event["message"], "cause": cause,
        });
        for field in ["cluster", "effect", "generation"] {
            if let Some(value) = entry.get(field) {
                body[field] = value.clone();
            }
        }
        Ok(Some((id, Self { at, cause_id, body })))
    }
}

/// Namespace of Events about an object.
fn subject_namespace(object: &Value) -> &str {
    object["namespace"].as_str().filter(|namespace| !namespace.is_empty()).unwrap_or("default")
}

/// Entries by their ids.
type Entries = HashMap<String, Entry>;

pub(super) struct Journal;

impl SearchOperation for Journal {
    const DEFINITION: Definition = definition("journal", "Journal");
    const SUMMARY: &str = "Changes of an object's placement with their causes up to the root cause, oldest first.";
    const PARAMETERS: &[Parameter] = &[
        Parameter::string(
            "about",
            "The object as KIND/NAMESPACE/NAME, KIND/NAME or NAME, as in about: of the query language.",
        )
        .required(),
        Parameter::string(
            "at",
            "Show entries around this time, as in at: of the query language: 10:05, now-2h, 2026-08-01T10:05 (default: all that are kept).",
        ),
        Parameter::string("within", "Period before and after the time, such as 90s or 15m (default 5m)."),
        Parameter::integer(
            "limit",
            "Maximum number of entries about the object; the newest are returned (default 100, at most 1000).",
        ),
    ];

    fn add_schemas(document: &mut Document) {
        let reference =
            json!({"apiVersion": string(), "kind": string(), "namespace": string(), "name": string(), "uid": string()});
        document.add_schema(name_of("JournalReference"), object(reference, &["namespace", "uid"]));
        let cause = json!({"ref": ref_to("JournalReference"), "text": string(), "event": string()});
        let cause = object(cause, &["ref", "event"]);
        let entry = json!({"id": string(), "at": date_time(), "action": string(), "reason": string(), "type": string(),
            "cluster": string(), "subject": ref_to("JournalReference"), "message": string(), "cause": cause,
            "effect": ref_to("Object"), "generation": integer(), "causes": list(string()), "isCause": boolean()});
        document.add_schema(name_of("JournalEntry"), object(entry, &["cluster", "effect", "generation", "isCause"]));
        let fields = json!({"about": string(), "entries": list(ref_to("JournalEntry")), "total": integer(),
            "keptForSeconds": integer(), "skipped": list(ref_to("Skipped")), "notices": list(ref_to("Notice"))});
        document.add_schema(name_of("Journal"), body("Journal", fields, &[]));
    }

    async fn respond(call: SearchCall<'_>) -> Result<Response, ApiError> {
        journal(&call).await
    }
}

async fn journal(call: &SearchCall<'_>) -> Result<Response, ApiError> {
    let cache = &call.running.cache;
    let about = call.parameters.required("about")?;
    let limit = call.parameters.number_in("limit", 1..=MAX_ENTRIES)?.unwrap_or(DEFAULT_ENTRIES);
    let mut request = SearchRequest::new(build_query(about, &call.parameters, Timestamp::now())?, call.user.clone());
    (request.page.limit, request.include_manifests) = (Some(limit), true);
    request.counts.facets.clear();
    let mut response = cache.searcher().search_all(request).await.map_err(ApiError::internal)?;
    // Events of members are not entries, so skipped members do not matter.
    response.skipped.retain(|skipped| skipped.cluster.is_control_plane());
    let mut entries = Entries::new();
    for hit in &response.hits {
        entries.extend(Entry::from_event(&hit.object)?);
    }
    let collection = response.hits.first().map(|hit| hit.object.record.key.collection.clone());
    let causes = match collection {
        Some(collection) => read_causes(cache, call.user, &collection, &entries).await?,
        None => Entries::new(),
    };
    let total = response.summary.as_ref().map_or(0, |summary| summary.total);
    typed_response(
        "Journal",
        &json!({"about": about, "entries": sorted_entries(entries, causes),
            "total": total, "keptForSeconds": cache.options().history.max_age.as_secs(),
            "skipped": skipped(&response.skipped), "notices": response.notices}),
    )
}

/// Builds the query that finds entries about an object.
fn build_query(about: &str, parameters: &Parameters<'_>, now: Timestamp) -> Result<String, ApiError> {
    if about.contains(|c: char| c.is_control() || matches!(c, '"' | '\\')) || about.split('/').count() > 3 {
        let forms = "expected KIND/NAMESPACE/NAME, KIND/NAME or NAME";
        return Err(invalid_parameter("about", about, forms));
    }
    let time = |name: &str| -> Result<Option<f64>, ApiError> {
        let Some(text) = parameters.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
        let moment = parse_time(text).ok_or_else(|| invalid_parameter(name, text, "expected a time such as 10:05"))?;
        Ok(Some(moment.seconds(now)))
    };
    // A duration is parsed as the moment that long ago.
    let within = time("within")?.map_or(DEFAULT_WINDOW_SECONDS, |ago| (now.as_second() as f64 - ago).max(1.0));
    let time_filter = match time("at")? {
        Some(at) => {
            let bound = |seconds: f64| Timestamp::from_second(seconds as i64).unwrap_or(now);
            format!("during:{}..{}", bound(at - within), bound(at + within))
        }
        // Existing Events and deleted ones.
        None => "(is:deleted OR -is:deleted)".to_owned(),
    };
    let (cluster, entry) = (ClusterName::control_plane(), annotation::JOURNAL_ENTRY);
    let cluster = cluster.as_str();
    Ok(format!("kind:event cluster:\"{cluster}\" ann:{entry} about:\"{about}\" {time_filter} sort:-last"))
}

/// Reads the causes of the entries, the causes of these, and so on. Each cause is read once.
async fn read_causes(
    cache: &GlobalCache,
    caller: &UserInfo,
    collection: &CollectionKey,
    entries: &Entries,
) -> Result<Entries, ApiError> {
    let mut causes = Entries::new();
    let mut next: Vec<String> = entries.values().filter_map(|entry| entry.cause_id.clone()).collect();
    for _ in 0..MAX_CAUSES {
        next.sort();
        next.dedup();
        next.retain(|id| !entries.contains_key(id) && !causes.contains_key(id));
        let mut earlier = Vec::new();
        for id in next {
            let Some((namespace, name)) = id.split_once('/') else { continue };
            let key = RecordKey { collection: collection.clone(), namespace: namespace.into(), name: name.into() };
            let Some(history) = cache.searcher().object_history(caller, &key).await.map_err(ApiError::internal)? else {
                continue;
            };
            let last = history.current.as_ref().or_else(|| history.versions.first().map(|version| &version.object));
            if let Some((id, entry)) = last.map(Entry::from_event).transpose()?.flatten() {
                earlier.extend(entry.cause_id.clone());
                causes.insert(id, entry);
            }
        }
        next = earlier;
    }
    Ok(causes)
}

/// Entries as JSON, oldest first and causes before effects. Each has the IDs of its known causes, up to
/// the root.
fn sorted_entries(entries: Entries, causes: Entries) -> Vec<Value> {
    let cause_id: HashMap<String, String> =
        entries.iter().chain(&causes).filter_map(|(id, entry)| Some((id.clone(), entry.cause_id.clone()?))).collect();
    let is_listed = |id: &String| entries.contains_key(id) || causes.contains_key(id);
    let cause_chain = |id: &str| -> Vec<String> {
        let steps = std::iter::successors(cause_id.get(id), |id| cause_id.get(*id));
        steps.take_while(|id| is_listed(id)).take(MAX_CAUSES).cloned().collect()
    };
    let cause_chains: HashMap<String, Vec<String>> =
        entries.keys().chain(causes.keys()).map(|id| (id.clone(), cause_chain(id))).collect();
    // Times of conditions and taints are whole seconds, and a cause may be written after its effects. Therefore a cause
    // is sorted into the second of its first effect, and within a second causes precede effects.
    let mut seconds: HashMap<String, String> = HashMap::new();
    for (id, entry) in entries.iter().chain(&causes) {
        let second = entry.at.get(..19).unwrap_or_default();
        for cause in std::iter::once(id).chain(cause_chains.get(id).into_iter().flatten()) {
            let first = seconds.entry(cause.clone()).or_insert_with(|| second.to_owned());
            if second < first.as_str() {
                second.clone_into(first);
            }
        }
    }
    let all = entries.into_iter().map(|item| (item, false)).chain(causes.into_iter().map(|item| (item, true)));
    let mut sorted = BTreeMap::new();
    for ((id, mut entry), is_cause) in all {
        let cause_chain = cause_chains.get(&id).cloned().unwrap_or_default();
        let second = seconds.get(&id).cloned().unwrap_or_default();
        let sort_key = (second, cause_chain.len(), entry.at, id);
        entry.body["causes"] = json!(cause_chain);
        if is_cause {
            entry.body["isCause"] = json!(true);
        }
        sorted.insert(sort_key, entry.body);
    }
    sorted.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::request::Query;
    use rstest::rstest;

    fn entry(at: &str, cause_id: Option<&str>) -> Entry {
        Entry { at: at.to_owned(), cause_id: cause_id.map(str::to_owned), body: json!({"at": at}) }
    }

    #[test]
    fn causes_written_after_their_effect_are_sorted_before_it() {
        let entries = Entries::from([
            ("shop/evicted".to_owned(), entry("2026-01-01T10:05:21.7Z", Some("default/taint"))),
            ("default/taint".to_owned(), entry("2026-01-01T10:05:22.2Z", Some("default/flip"))),
            ("default/flip".to_owned(), entry("2026-01-01T10:05:21.4Z", None)),
        ]);
        let sorted = sorted_entries(entries, Entries::new());
        let at: Vec<_> = sorted.iter().filter_map(|entry| entry["at"].as_str()).collect();
        assert_eq!(at, ["2026-01-01T10:05:21.4Z", "2026-01-01T10:05:22.2Z", "2026-01-01T10:05:21.7Z"]);
    }

    #[test]
    fn causes_precede_effects_and_lead_to_the_root() {
        let second = "2026-01-01T10:05:01";
        let entries = Entries::from([
            ("shop/evicted".to_owned(), entry(&format!("{second}.1Z"), Some("default/taint"))),
            ("shop/moved".to_owned(), entry("2026-01-01T10:05:02.0Z", Some("shop/evicted"))),
            ("shop/other".to_owned(), entry("2026-01-01T10:05:00.0Z", Some("default/gone"))),
        ]);
        let causes = Entries::from([
            ("default/taint".to_owned(), entry(&format!("{second}.3Z"), Some("default/flip"))),
            ("default/flip".to_owned(), entry(&format!("{second}.2Z"), None)),
        ]);
        let sorted = sorted_entries(entries, causes);
        let read: Vec<(&str, usize, bool)> = sorted
            .iter()
            .map(|entry| {
                let causes = entry["causes"].as_array().expect("a list").len();
                (entry["at"].as_str().expect("a time"), causes, entry["isCause"] == true)
            })
            .collect();
        let expected = [
            ("2026-01-01T10:05:00.0Z", 0, false),
            ("2026-01-01T10:05:01.2Z", 0, true),
            ("2026-01-01T10:05:01.3Z", 1, true),
            ("2026-01-01T10:05:01.1Z", 2, false),
            ("2026-01-01T10:05:02.0Z", 3, false),
        ];
        assert_eq!(read, expected);
        assert_eq!(sorted[4]["causes"], json!(["shop/evicted", "default/taint", "default/flip"]));
    }

    /// A cycle of causes, which no controller writes.
    #[test]
    fn cyclic_causes_end() {
        let entries = Entries::from([
            ("a/a".to_owned(), entry("2026-01-01T10:05:00Z", Some("a/b"))),
            ("a/b".to_owned(), entry("2026-01-01T10:05:00Z", Some("a/a"))),
        ]);
        assert_eq!(sorted_entries(entries, Entries::new()).len(), 2);
    }

    #[rstest]
    #[case::all("about=deploy/shop/web", Ok("about:\"deploy/shop/web\" (is:deleted OR -is:deleted) sort:-last"))]
    #[case::around(
        "about=web&at=10:05",
        Ok("about:\"web\" during:2026-01-01T10:00:00Z..2026-01-01T10:10:00Z sort:-last")
    )]
    #[case::closer(
        "about=web&at=now-2h&within=1m",
        Ok("about:\"web\" during:2026-01-01T09:59:00Z..2026-01-01T10:01:00Z sort:-last")
    )]
    #[case::no_time("about=web&at=tea", Err("invalid at=\"tea\": expected a time such as 10:05"))]
    #[case::no_object(
        "about=a/b/c/d",
        Err("invalid about=\"a/b/c/d\": expected KIND/NAMESPACE/NAME, KIND/NAME or NAME")
    )]
    #[case::a_query(
        "about=a\" OR \"",
        Err("invalid about=\"a\\\" OR \\\"\": expected KIND/NAMESPACE/NAME, KIND/NAME or NAME")
    )]
    fn queries_are_built(#[case] query: &str, #[case] expected: Result<&str, &str>) {
        let query = Query::parse(Some(query));
        let parameters = Parameters::new(&query);
        let now = "2026-01-01T12:00:00Z".parse().expect("a time");
        let query_text = build_query(parameters.get("about").expect("it is there"), &parameters, now);
        match (query_text, expected) {
            (Ok(query_text), Ok(end)) => {
                assert!(query_text.starts_with("kind:event cluster:") && query_text.ends_with(end), "{query_text}")
            }
            (Err(failure), Err(message)) => assert_eq!(failure.message, message),
            (query_text, expected) => panic!("{} instead of {expected:?}", query_text.is_ok()),
        }
    }
}
