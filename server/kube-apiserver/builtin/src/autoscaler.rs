//! Horizontal pod autoscalers in `autoscaling/v1`: fields that this version lacks are stored in annotations, in the
//! format of the alpha version that introduced metrics. Has no side effects. From `autoscaling/v1/conversion.go`.

use crowsnest_schema::internal_structs::format_internal_struct;
use crowsnest_schema::print::format_definition;
use serde_json::{Map, Value, json};

use super::object::{at, at_mut, is_set, items, number, remove_field, set_field, text};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const CONDITION: &str = "io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerCondition";
const SELECTOR: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector";
const DEFAULT_CPU_UTILIZATION: i64 = 80;
const BEHAVIOR_STRUCT: &str = "autoscaling.HorizontalPodAutoscalerBehavior";

/// Name of a field in the alpha format, its path in `autoscaling/v2`, and when it is written.
type Field = (&'static str, &'static str, When);

#[derive(Clone, Copy, PartialEq)]
enum When {
    Always,
    /// A quantity, written as zero if it is absent.
    QuantityAlways,
    IfPresent,
}
use When::{Always, IfPresent, QuantityAlways};

/// Fields of each metric source in the alpha format: of targets in the spec, or of current values in the status.
struct MetricsFormat {
    object: &'static [Field],
    pods: &'static [Field],
    resource: &'static [Field],
    container: &'static [Field],
    external: &'static [Field],
}

const SPEC_METRICS: MetricsFormat = MetricsFormat {
    object: &[
        ("target", "describedObject", Always),
        ("metricName", "metric.name", Always),
        ("targetValue", "target.value", QuantityAlways),
        ("selector", "metric.selector", IfPresent),
        ("averageValue", "target.averageValue", IfPresent),
    ],
    pods: &[
        ("metricName", "metric.name", Always),
        ("targetAverageValue", "target.averageValue", QuantityAlways),
        ("selector", "metric.selector", IfPresent),
    ],
    resource: &[
        ("name", "name", Always),
        ("targetAverageUtilization", "target.averageUtilization", IfPresent),
        ("targetAverageValue", "target.averageValue", IfPresent),
    ],
    container: &[
        ("name", "name", Always),
        ("targetAverageUtilization", "target.averageUtilization", IfPresent),
        ("targetAverageValue", "target.averageValue", IfPresent),
        ("container", "container", Always),
    ],
    external: &[
        ("metricName", "metric.name", Always),
        ("metricSelector", "metric.selector", IfPresent),
        ("targetValue", "target.value", IfPresent),
        ("targetAverageValue", "target.averageValue", IfPresent),
    ],
};

const STATUS_METRICS: MetricsFormat = MetricsFormat {
    object: &[
        ("target", "describedObject", Always),
        ("metricName", "metric.name", Always),
        ("currentValue", "current.value", QuantityAlways),
        ("selector", "metric.selector", IfPresent),
        ("averageValue", "current.averageValue", IfPresent),
    ],
    pods: &[
        ("metricName", "metric.name", Always),
        ("currentAverageValue", "current.averageValue", QuantityAlways),
        ("selector", "metric.selector", IfPresent),
    ],
    resource: &[
        ("name", "name", Always),
        ("currentAverageUtilization", "current.averageUtilization", IfPresent),
        ("currentAverageValue", "current.averageValue", QuantityAlways),
    ],
    container: &[
        ("name", "name", Always),
        ("currentAverageUtilization", "current.averageUtilization", IfPresent),
        ("currentAverageValue", "current.averageValue", QuantityAlways),
        ("container", "container", Always),
    ],
    external: &[
        ("metricName", "metric.name", Always),
        ("metricSelector", "metric.selector", IfPresent),
        ("currentValue", "current.value", QuantityAlways),
        ("currentAverageValue", "current.averageValue", IfPresent),
    ],
};

impl MetricsFormat {
    /// The metric sources in the order in which Go writes them.
    fn sources(&self) -> [(&'static str, &'static [Field]); 5] {
        [
            ("object", self.object),
            ("pods", self.pods),
            ("resource", self.resource),
            ("containerResource", self.container),
            ("external", self.external),
        ]
    }

    /// Encodes a list of metrics in the alpha format.
    fn encode(&self, metrics: &[Value]) -> String {
        let metrics: Vec<String> = metrics.iter().map(|metric| self.encode_metric(metric)).collect();
        format!("[{}]", metrics.join(","))
    }

    fn encode_metric(&self, metric: &Value) -> String {
        let mut members = vec![format!("\"type\":{}", json!(text(metric, "type")))];
        for (name, fields) in self.sources() {
            let source = at(metric, name);
            if source.is_object() {
                members.push(format!("{name:?}:{{{}}}", encode_fields(fields, source).join(",")));
            }
        }
        format!("{{{}}}", members.join(","))
    }

    /// Decodes the metrics in an annotation.
    fn decode(&self, annotation: &str, kind: fn(&str, &Value) -> Option<&'static str>) -> Option<Vec<Value>> {
        let list: Vec<Value> = serde_json::from_str(annotation).ok()?;
        let metrics = list.iter().map(|alpha| {
            let mut metric = json!({"type": at(alpha, "type")});
            for (name, fields) in self.sources() {
                if !at(alpha, name).is_object() {
                    continue;
                }
                let mut source = decode_source(fields, at(alpha, name));
                if let Some(kind) = kind(name, &source) {
                    set_field(&mut source["target"], "type", kind);
                }
                set_field(&mut metric, name, source);
            }
            metric
        });
        Some(metrics.collect())
    }
}

fn encode_fields(fields: &[Field], source: &Value) -> Vec<String> {
    let encode_field = |(alpha, path, when): &Field| {
        let value = at(source, path);
        let text = match (value.is_null(), when) {
            (true, IfPresent) => return None,
            (true, QuantityAlways) => "\"0\"".to_owned(),
            (true, Always) => "\"\"".to_owned(),
            (false, _) if *alpha == "target" => {
                let fields: [Field; 3] =
                    [("kind", "kind", Always), ("name", "name", Always), ("apiVersion", "apiVersion", IfPresent)];
                format!("{{{}}}", encode_fields(&fields, value).join(","))
            }
            (false, _) if path.ends_with("selector") => format_definition(value, SELECTOR),
            (false, _) => value.to_string(),
        };
        Some(format!("{alpha:?}:{text}"))
    };
    fields.iter().filter_map(encode_field).collect()
}

fn decode_source(fields: &[Field], alpha: &Value) -> Value {
    let mut source = json!({});
    for (name, path, _) in fields {
        let value = at(alpha, name);
        if value.is_null() {
            continue;
        }
        match path.split_once('.') {
            Some((parent, field)) => {
                if !is_set(&source, parent) {
                    set_field(&mut source, parent, json!({}));
                }
                set_field(&mut source[parent], field, value.clone());
            }
            None => set_field(&mut source, path, value.clone()),
        }
    }
    source
}

/// The type of a target, which the alpha format lacks. A zero in it may mean that the field is absent.
fn target_type(source: &str, metric: &Value) -> Option<&'static str> {
    let has = |field: &str| is_set(metric, &format!("target.{field}"));
    Some(match source {
        "pods" => "AverageValue",
        "object" if has("averageValue") => "AverageValue",
        "object" => "Value",
        "external" if has("value") => "Value",
        "external" => "AverageValue",
        _ if has("averageUtilization") => "Utilization",
        _ => "AverageValue",
    })
}

fn is_cpu_utilization(metric: &Value) -> bool {
    text(metric, "type") == "Resource"
        && text(metric, "resource.name") == "cpu"
        && is_set(metric, "resource.target.averageUtilization")
}

/// The object at a field, which is created if it is absent.
fn get_or_insert_object<'a>(value: &'a mut Value, field: &str) -> &'a mut Value {
    if !is_set(value, field) {
        set_field(value, field, Map::new());
    }
    &mut value[field]
}

fn set_annotation(object: &mut Value, key: &str, value: Option<String>) {
    match value {
        Some(value) => {
            // A partial object may have no metadata.
            let metadata = get_or_insert_object(object, "metadata");
            set_field(get_or_insert_object(metadata, "annotations"), key, value);
        }
        // Other annotations stay.
        None => drop(at_mut(object, "metadata.annotations").and_then(|all| remove_field(all, key))),
    }
}

fn take_annotation(object: &mut Value, key: &str) -> Option<String> {
    remove_field(at_mut(object, "metadata.annotations")?, key)?.as_str().map(str::to_owned)
}

/// Converts an autoscaler to `autoscaling/v1`.
pub(super) fn to_v1(object: &mut Value) {
    let metrics = items(object, "spec.metrics").to_vec();
    let (cpu, others): (Vec<Value>, Vec<Value>) = metrics.into_iter().partition(is_cpu_utilization);
    let behavior = at_mut(object, "spec").and_then(|spec| {
        remove_field(spec, "metrics");
        if let Some(metric) = cpu.first() {
            set_field(spec, "targetCPUUtilizationPercentage", at(metric, "resource.target.averageUtilization").clone());
        }
        remove_field(spec, "behavior")
    });
    set_annotation(object, METRICS, (!others.is_empty()).then(|| SPEC_METRICS.encode(&others)));
    let behavior = behavior.filter(Value::is_object);
    set_annotation(object, BEHAVIOR, behavior.map(|behavior| format_internal_struct(BEHAVIOR_STRUCT, &behavior)));
    let (conditions, current) = match at_mut(object, "status") {
        Some(status) => (remove_field(status, "conditions"), remove_field(status, "currentMetrics")),
        None => (None, None),
    };
    let list = |list: Option<Value>| match list {
        Some(Value::Array(list)) if !list.is_empty() => Some(list),
        _ => None,
    };
    let (conditions, current) = (list(conditions), list(current));
    let is_cpu = |metric: &&Value| text(metric, "type") == "Resource" && text(metric, "resource.name") == "cpu";
    let utilization = current.iter().flatten().filter(is_cpu);
    let utilization = utilization.filter_map(|metric| number(metric, "resource.current.averageUtilization")).next();
    if let (Some(percent), Some(status)) = (utilization, at_mut(object, "status")) {
        set_field(status, "currentCPUUtilizationPercentage", percent);
    }
    set_annotation(object, CURRENT_METRICS, current.map(|current| STATUS_METRICS.encode(&current)));
    let encode_conditions = |conditions: Vec<Value>| {
        let all: Vec<String> = conditions.iter().map(|condition| format_definition(condition, CONDITION)).collect();
        format!("[{}]", all.join(","))
    };
    set_annotation(object, CONDITIONS, conditions.map(encode_conditions));
}

/// Converts an autoscaler to `autoscaling/v2`.
pub(super) fn to_v2(object: &mut Value) {
    let others = take_annotation(object, METRICS).and_then(|text| SPEC_METRICS.decode(&text, target_type));
    let behavior = take_annotation(object, BEHAVIOR).and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let conditions = take_annotation(object, CONDITIONS).and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let current = take_annotation(object, CURRENT_METRICS).and_then(|text| STATUS_METRICS.decode(&text, |_, _| None));
    let spec = get_or_insert_object(object, "spec");
    let mut metrics = others.unwrap_or_default();
    metrics.iter_mut().for_each(remove_zero_value);
    let cpu = remove_field(spec, "targetCPUUtilizationPercentage").filter(|percent| !percent.is_null());
    // An autoscaler without metrics scales by CPU. The defaults of v1 do not consider the annotation.
    if let Some(percent) = cpu.or_else(|| metrics.is_empty().then(|| DEFAULT_CPU_UTILIZATION.into())) {
        metrics.push(to_cpu_metric(json!({"target": {"type": "Utilization", "averageUtilization": percent}})));
    }
    set_field(spec, "metrics", metrics);
    let behavior = behavior
        .map(to_lower_camel_case)
        .filter(|behavior| is_set(behavior, "scaleUp") || is_set(behavior, "scaleDown"));
    if let Some(behavior) = behavior {
        set_field(spec, "behavior", behavior);
    }
    let Some(status) = at_mut(object, "status") else { return };
    let percent = remove_field(status, "currentCPUUtilizationPercentage");
    let current = current
        .or_else(|| percent.map(|percent| vec![to_cpu_metric(json!({"current": {"averageUtilization": percent}}))]));
    if let Some(current) = current {
        set_field(status, "currentMetrics", current);
    }
    if let Some(conditions) = conditions.filter(Value::is_array) {
        set_field(status, "conditions", conditions);
    }
}

fn to_cpu_metric(mut source: Value) -> Value {
    set_field(&mut source, "name", "cpu");
    json!({"type": "Resource", "resource": source})
}

/// Removes the zero `value` next to an average, which the alpha format could not omit.
fn remove_zero_value(metric: &mut Value) {
    let Some(target) = at_mut(metric, "object.target") else { return };
    if is_set(target, "averageValue") && matches!(text(target, "value"), "0" | "") {
        remove_field(target, "value");
    }
}

/// Converts field names to lower camel case: Go decodes them case-insensitively.
fn to_lower_camel_case(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let lower = |name: String| match name.chars().next() {
                Some(first) => first.to_lowercase().chain(name.chars().skip(1)).collect(),
                None => name,
            };
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(name, value)| (lower(name), to_lower_camel_case(value))).collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(to_lower_camel_case).collect()),
        other => other,
    }
}

/// Restores the annotations that contain the status, which writes of the spec cannot change.
pub(super) fn restore_status_annotations(old: &Value, new: &mut Value) {
    for key in [CONDITIONS, CURRENT_METRICS] {
        let before = at(old, "metadata.annotations").get(key).and_then(Value::as_str).map(str::to_owned);
        if at(new, "metadata.annotations").get(key).is_some() || before.is_some() {
            set_annotation(new, key, before);
        }
    }
}

/// True if an `autoscaling/v1` autoscaler has metrics in addition to its CPU field.
pub(super) fn has_other_metrics(object: &Value) -> bool {
    let annotations = at(object, "metadata.annotations");
    let annotation = annotations.get(METRICS).and_then(Value::as_str);
    annotation
        .and_then(|annotation| serde_json::from_str::<Vec<Value>>(annotation).ok())
        .is_some_and(|metrics| !metrics.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metrics in v2, and the annotation in v1.
    const METRICS_IN_BOTH_VERSIONS: [(&str, &str); 5] = [
        (
            r#"{"type":"Pods","pods":{"metric":{"name":"m","selector":{"matchLabels":{"a":"b"}}},"target":{"type":"AverageValue","averageValue":"1"}}}"#,
            r#"[{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"1","selector":{"matchLabels":{"a":"b"}}}}]"#,
        ),
        (
            r#"{"type":"Object","object":{"describedObject":{"kind":"Service","name":"s"},"metric":{"name":"m"},"target":{"type":"AverageValue","averageValue":"2"}}}"#,
            r#"[{"type":"Object","object":{"target":{"kind":"Service","name":"s"},"metricName":"m","targetValue":"0","averageValue":"2"}}]"#,
        ),
        (
            r#"{"type":"External","external":{"metric":{"name":"m"},"target":{"type":"Value","value":"3"}}}"#,
            r#"[{"type":"External","external":{"metricName":"m","targetValue":"3"}}]"#,
        ),
        (
            r#"{"type":"Resource","resource":{"name":"memory","target":{"type":"Utilization","averageUtilization":4}}}"#,
            r#"[{"type":"Resource","resource":{"name":"memory","targetAverageUtilization":4}}]"#,
        ),
        (
            r#"{"type":"ContainerResource","containerResource":{"container":"c","name":"cpu","target":{"type":"AverageValue","averageValue":"5m"}}}"#,
            r#"[{"type":"ContainerResource","containerResource":{"name":"cpu","targetAverageValue":"5m","container":"c"}}]"#,
        ),
    ];

    #[test]
    fn metrics_round_trip_through_annotations() {
        for (v2, annotation) in METRICS_IN_BOTH_VERSIONS {
            let metric: Value = serde_json::from_str(v2).unwrap();
            let old = json!({"metadata": {"name": "h"}, "spec": {"metrics": [metric], "behavior": {"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 2}]}}}});
            let mut object = old.clone();
            to_v1(&mut object);
            assert_eq!(object["metadata"]["annotations"][METRICS], annotation);
            let behavior = r#"{"ScaleUp":null,"ScaleDown":{"StabilizationWindowSeconds":null,"SelectPolicy":null,"Policies":[{"Type":"Pods","Value":1,"PeriodSeconds":2}],"Tolerance":null}}"#;
            assert_eq!(object["metadata"]["annotations"][BEHAVIOR], behavior);
            to_v2(&mut object);
            assert_eq!(object["spec"], old["spec"]);
        }
    }
}
