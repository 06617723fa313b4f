//! Hits, counts and the summary of a result as JSON.

use crowsnest_index::{Error, Object};
use crowsnest_search::{FacetCounts, Hit, SkippedCluster, Summary};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::columns::Columns;

/// Relation of counts to the exact ones: lower bounds if a limit was reached.
pub(super) fn total_relation(is_incomplete: bool) -> &'static str {
    if is_incomplete { "gte" } else { "eq" }
}

/// Fields of a result's summary.
pub(super) fn summary_fields(summary: &Summary) -> Value {
    let mut value = json!({
        "total": summary.total,
        "totalRelation": total_relation(summary.incomplete),
        "tookMs": (summary.took_ms * 10.0).round() / 10.0,
        "seq": summary.seq,
        "behind": summary.behind,
        "didYouMean": summary.did_you_mean,
        "wider": summary.relaxed_queries,
    });
    if let Some(next) = &summary.next {
        value["cursor"] = next.to_string().into();
    }
    value
}

fn values(counts: &FacetCounts) -> Value {
    counts.values.iter().map(|(value, count)| json!({"value": value, "count": count})).collect()
}

pub(super) fn facets(counts: &[FacetCounts]) -> Value {
    Value::Object(counts.iter().map(|facet| (facet.field.clone(), values(facet))).collect())
}

/// Groups with their counts, and with their sums if there are any.
pub(super) fn groups(counts: &FacetCounts) -> Value {
    let mut values = values(counts);
    for (nth, value) in values.as_array_mut().into_iter().flatten().enumerate().filter(|_| !counts.sums.is_empty()) {
        value["sums"] = counts.sums.iter().map(|sums| (sums.field.clone(), json!(sums.values.get(nth)))).collect();
    }
    json!({"field": counts.field, "values": values, "more": counts.more})
}

/// Clusters whose data is missing or outdated.
pub(super) fn skipped(clusters: &[SkippedCluster]) -> Value {
    let cluster = |skipped: &SkippedCluster| {
        let mut value = json!({"cluster": skipped.cluster, "reason": skipped.reason, "resources": skipped.resources, "missing": skipped.has_missing_objects});
        if let Some(age) = skipped.age_seconds {
            value["ageSeconds"] = age.into();
        }
        value
    };
    Value::Array(clusters.iter().map(cluster).collect())
}

pub(super) fn hits(hits: &[Hit], columns: &Columns, now: Timestamp) -> Result<Vec<Value>, Error> {
    hits.iter().map(|entry| hit(entry, columns, now)).collect()
}

pub(super) fn hit(hit: &Hit, columns: &Columns, now: Timestamp) -> Result<Value, Error> {
    let mut value = summary(&hit.object)?;
    value.insert("score".into(), json!(hit.score));
    let matched = hit.reasons.iter().map(|reason| {
        let mut matched = json!({"field": reason.field, "text": reason.value});
        if !reason.marks.is_empty() {
            matched["marks"] = json!(reason.marks);
        }
        matched
    });
    value.insert("matched".into(), matched.collect());
    if let Some(end) = &hit.version_end {
        let name = if end.deleted { "deleted" } else { "until" };
        value.insert(name.into(), time(Some(end.until / 1000)));
        // Versions of one second have the same times.
        value.insert("seq".into(), json!(hit.object.record.seq));
    }
    if let Some(values) = columns.values(&hit.object, now)? {
        value.insert("columns".into(), values);
    }
    Ok(Value::Object(value))
}

/// Fields that identify an object.
pub(super) fn identity(object: &Object) -> Map<String, Value> {
    let record = &object.record;
    let value = json!({
        "cluster": record.key.cluster(),
        "apiVersion": record.key.resource().api_version(),
        "kind": &*record.kind,
        "resource": &*record.key.resource().resource,
        "name": &*record.key.name,
        "uid": record.uid,
    });
    let mut fields = match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    if !record.key.namespace.is_empty() {
        fields.insert("namespace".into(), json!(&*record.key.namespace));
    }
    fields
}

/// Identity and state of an object.
pub(super) fn summary(object: &Object) -> Result<Map<String, Value>, Error> {
    let record = &object.record;
    let printed = record.printed_object()?;
    let mut value = identity(object);
    let mut set = |name: &str, field: Value| {
        if !field.is_null() && field != "" {
            value.insert(name.to_owned(), field);
        }
    };
    set("status", json!(printed.status));
    set("restarts", json!(printed.restarts));
    set("node", json!(printed.node));
    if let (Some(ready), Some(desired)) = (printed.ready, printed.desired) {
        set("ready", json!(format!("{ready}/{desired}")));
    }
    if !printed.images.is_empty() {
        set("images", json!(printed.images));
    }
    set("created", time(record.created));
    set("deleting", time(record.deleting));
    Ok(value)
}

/// A Unix time in seconds as RFC 3339 text; null if it is missing.
pub(super) fn time(seconds: Option<i64>) -> Value {
    seconds.and_then(|s| jiff::Timestamp::from_second(s).ok()).map_or(Value::Null, |t| json!(t.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_search::GroupSums;
    use rstest::rstest;

    #[rstest]
    #[case::counts_only(vec![], json!([{"value": "n2", "count": 3}, {"value": "n1", "count": 1}]))]
    #[case::sums(
        vec![("cpu.req", vec![1500, 0]), ("mem.req", vec![1 << 40, 7])],
        json!([{"value": "n2", "count": 3, "sums": {"cpu.req": 1500, "mem.req": 1_099_511_627_776_u64}},
            {"value": "n1", "count": 1, "sums": {"cpu.req": 0, "mem.req": 7}}])
    )]
    fn groups_have_their_sums(#[case] sums: Vec<(&str, Vec<i64>)>, #[case] expected: Value) {
        let sums = sums.into_iter().map(|(field, values)| GroupSums { field: field.to_owned(), values }).collect();
        let values = vec![("n2".to_owned(), 3), ("n1".to_owned(), 1)];
        let counts = FacetCounts { field: "node".to_owned(), values, more: 0, sums };
        assert_eq!(groups(&counts), json!({"field": "node", "values": expected, "more": 0}));
    }
}
