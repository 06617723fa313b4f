//! Horizontal pod autoscalers in `autoscaling/v1`: fields that this version lacks are stored in annotations, in the
//! format of the alpha version that introduced metrics. Used by `convert`; pure. From
//! `autoscaling/v1/conversion.go`.

use crowsnest_schema::internal::internal_text;
use crowsnest_schema::print::text_of;
use serde_json::{Map, Value, json};

use super::object::{at, inside, is_set, items, number, put, take, text};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const CONDITION: &str = "io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerCondition";
const SELECTOR: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector";
const DEFAULT_CPU_UTILIZATION: i64 = 80;
const RULES_OF_BEHAVIOR: &str = "autoscaling.HorizontalPodAutoscalerBehavior";

/// Name of a field in the alpha format, its path in `autoscaling/v2`, and when it is written.
type Field = (&'static str, &'static str, When);

#[derive(Clone, Copy, PartialEq)]
enum When {
    Always,
    /// A quantity, written as zero if it is absent.
    AlwaysAmount,
    Given,
}
use When::{Always, AlwaysAmount, Given};

/// Fields of a metrics list: targets in the spec, or current values in the status.
struct Layout {
    object: &'static [Field],
    pods: &'static [Field],
    resource: &'static [Field],
    container: &'static [Field],
    external: &'static [Field],
}

const WANTED: Layout = Layout {
    object: &[
        ("target", "describedObject", Always),
        ("metricName", "metric.name", Always),
        ("targetValue", "target.value", AlwaysAmount),
        ("selector", "metric.selector", Given),
        ("averageValue", "target.averageValue", Given),
    ],
    pods: &[
        ("metricName", "metric.name", Always),
        ("targetAverageValue", "target.averageValue", AlwaysAmount),
        ("selector", "metric.selector", Given),
    ],
    resource: &[
        ("name", "name", Always),
        ("targetAverageUtilization", "target.averageUtilization", Given),
        ("targetAverageValue", "target.averageValue", Given),
    ],
    container: &[
        ("name", "name", Always),
        ("targetAverageUtilization", "target.averageUtilization", Given),
        ("targetAverageValue", "target.averageValue", Given),
        ("container", "container", Always),
    ],
    external: &[
        ("metricName", "metric.name", Always),
        ("metricSelector", "metric.selector", Given),
        ("targetValue", "target.value", Given),
        ("targetAverageValue", "target.averageValue", Given),
    ],
};

const FOUND: Layout = Layout {
    object: &[
        ("target", "describedObject", Always),
        ("metricName", "metric.name", Always),
        ("currentValue", "current.value", AlwaysAmount),
        ("selector", "metric.selector", Given),
        ("averageValue", "current.averageValue", Given),
    ],
    pods: &[
        ("metricName", "metric.name", Always),
        ("currentAverageValue", "current.averageValue", AlwaysAmount),
        ("selector", "metric.selector", Given),
    ],
    resource: &[
        ("name", "name", Always),
        ("currentAverageUtilization", "current.averageUtilization", Given),
        ("currentAverageValue", "current.averageValue", AlwaysAmount),
    ],
    container: &[
        ("name", "name", Always),
        ("currentAverageUtilization", "current.averageUtilization", Given),
        ("currentAverageValue", "current.averageValue", AlwaysAmount),
        ("container", "container", Always),
    ],
    external: &[
        ("metricName", "metric.name", Always),
        ("metricSelector", "metric.selector", Given),
        ("currentValue", "current.value", AlwaysAmount),
        ("currentAverageValue", "current.averageValue", Given),
    ],
};

impl Layout {
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
    fn write(&self, metrics: &[Value]) -> String {
        let metrics: Vec<String> = metrics.iter().map(|metric| self.write_one(metric)).collect();
        format!("[{}]", metrics.join(","))
    }

    fn write_one(&self, metric: &Value) -> String {
        let mut members = vec![format!("\"type\":{}", json!(text(metric, "type")))];
        for (name, fields) in self.sources() {
            let source = at(metric, name);
            if source.is_object() {
                members.push(format!("{name:?}:{{{}}}", written(fields, source).join(",")));
            }
        }
        format!("{{{}}}", members.join(","))
    }

    /// Decodes the metrics in an annotation.
    fn read(&self, annotation: &str, kind: fn(&str, &Value) -> Option<&'static str>) -> Option<Vec<Value>> {
        let list: Vec<Value> = serde_json::from_str(annotation).ok()?;
        let read = list.iter().map(|alpha| {
            let mut metric = json!({"type": at(alpha, "type")});
            for (name, fields) in self.sources() {
                if !at(alpha, name).is_object() {
                    continue;
                }
                let mut source = read_source(fields, at(alpha, name));
                if let Some(kind) = kind(name, &source) {
                    put(&mut source["target"], "type", kind);
                }
                put(&mut metric, name, source);
            }
            metric
        });
        Some(read.collect())
    }
}

fn written(fields: &[Field], source: &Value) -> Vec<String> {
    let shown = |(alpha, path, when): &Field| {
        let value = at(source, path);
        let text = match (value.is_null(), when) {
            (true, Given) => return None,
            (true, AlwaysAmount) => "\"0\"".to_owned(),
            (true, Always) => "\"\"".to_owned(),
            (false, _) if *alpha == "target" => {
                let fields: [Field; 3] =
                    [("kind", "kind", Always), ("name", "name", Always), ("apiVersion", "apiVersion", Given)];
                format!("{{{}}}", written(&fields, value).join(","))
            }
            (false, _) if path.ends_with("selector") => text_of(value, SELECTOR),
            (false, _) => value.to_string(),
        };
        Some(format!("{alpha:?}:{text}"))
    };
    fields.iter().filter_map(shown).collect()
}

fn read_source(fields: &[Field], alpha: &Value) -> Value {
    let mut source = json!({});
    for (name, path, _) in fields {
        let value = at(alpha, name);
        if value.is_null() {
            continue;
        }
        match path.split_once('.') {
            Some((parent, field)) => {
                if !is_set(&source, parent) {
                    put(&mut source, parent, json!({}));
                }
                put(&mut source[parent], field, value.clone());
            }
            None => put(&mut source, path, value.clone()),
        }
    }
    source
}

/// The target type, which the alpha format lacks. A zero that the format could not omit is not a target.
fn kind_of_target(source: &str, metric: &Value) -> Option<&'static str> {
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

/// The struct at a field, created if it is absent, as Go has it.
fn made<'a>(value: &'a mut Value, field: &str) -> &'a mut Value {
    if !is_set(value, field) {
        put(value, field, Map::new());
    }
    &mut value[field]
}

fn annotate(object: &mut Value, key: &str, value: Option<String>) {
    match value {
        Some(value) => {
            // A partial object may have no metadata.
            let metadata = made(object, "metadata");
            put(made(metadata, "annotations"), key, value);
        }
        // Only our annotation is removed.
        None => drop(inside(object, "metadata.annotations").and_then(|all| take(all, key))),
    }
}

fn annotated(object: &mut Value, key: &str) -> Option<String> {
    take(inside(object, "metadata.annotations")?, key)?.as_str().map(str::to_owned)
}

pub(super) fn to_v1(object: &mut Value) {
    let metrics = items(object, "spec.metrics").to_vec();
    let (cpu, others): (Vec<Value>, Vec<Value>) = metrics.into_iter().partition(is_cpu_utilization);
    let behavior = inside(object, "spec").and_then(|spec| {
        take(spec, "metrics");
        if let Some(metric) = cpu.first() {
            put(spec, "targetCPUUtilizationPercentage", at(metric, "resource.target.averageUtilization").clone());
        }
        take(spec, "behavior")
    });
    annotate(object, METRICS, (!others.is_empty()).then(|| WANTED.write(&others)));
    let behavior = behavior.filter(Value::is_object);
    annotate(object, BEHAVIOR, behavior.map(|behavior| internal_text(RULES_OF_BEHAVIOR, &behavior)));
    let (conditions, current) = match inside(object, "status") {
        Some(status) => (take(status, "conditions"), take(status, "currentMetrics")),
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
    if let (Some(percent), Some(status)) = (utilization, inside(object, "status")) {
        put(status, "currentCPUUtilizationPercentage", percent);
    }
    annotate(object, CURRENT_METRICS, current.map(|current| FOUND.write(&current)));
    let written = |conditions: Vec<Value>| {
        let all: Vec<String> = conditions.iter().map(|condition| text_of(condition, CONDITION)).collect();
        format!("[{}]", all.join(","))
    };
    annotate(object, CONDITIONS, conditions.map(written));
}

pub(super) fn to_v2(object: &mut Value) {
    let others = annotated(object, METRICS).and_then(|text| WANTED.read(&text, kind_of_target));
    let behavior = annotated(object, BEHAVIOR).and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let conditions = annotated(object, CONDITIONS).and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let current = annotated(object, CURRENT_METRICS).and_then(|text| FOUND.read(&text, |_, _| None));
    let spec = made(object, "spec");
    let mut metrics = others.unwrap_or_default();
    metrics.iter_mut().for_each(without_zero);
    let cpu = take(spec, "targetCPUUtilizationPercentage").filter(|percent| !percent.is_null());
    // An autoscaler without metrics scales by CPU. The defaults of v1 do not consider the annotation.
    if let Some(percent) = cpu.or_else(|| metrics.is_empty().then(|| DEFAULT_CPU_UTILIZATION.into())) {
        metrics.push(of_cpu(json!({"target": {"type": "Utilization", "averageUtilization": percent}})));
    }
    put(spec, "metrics", metrics);
    let behavior =
        behavior.map(lowered).filter(|behavior| is_set(behavior, "scaleUp") || is_set(behavior, "scaleDown"));
    if let Some(behavior) = behavior {
        put(spec, "behavior", behavior);
    }
    let Some(status) = inside(object, "status") else { return };
    let percent = take(status, "currentCPUUtilizationPercentage");
    let current =
        current.or_else(|| percent.map(|percent| vec![of_cpu(json!({"current": {"averageUtilization": percent}}))]));
    if let Some(current) = current {
        put(status, "currentMetrics", current);
    }
    if let Some(conditions) = conditions.filter(Value::is_array) {
        put(status, "conditions", conditions);
    }
}

fn of_cpu(mut source: Value) -> Value {
    put(&mut source, "name", "cpu");
    json!({"type": "Resource", "resource": source})
}

/// Removes the zero `value` next to an average, which the alpha format could not omit.
fn without_zero(metric: &mut Value) {
    let Some(target) = inside(metric, "object.target") else { return };
    if is_set(target, "averageValue") && matches!(text(target, "value"), "0" | "") {
        take(target, "value");
    }
}

/// Converts field names to lower camel case: Go decodes them case-insensitively.
fn lowered(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let lower = |name: String| match name.chars().next() {
                Some(first) => first.to_lowercase().chain(name.chars().skip(1)).collect(),
                None => name,
            };
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(name, value)| (lower(name), lowered(value))).collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(lowered).collect()),
        other => other,
    }
}

/// Restores the annotations that contain the status; writes of the spec cannot change them.
pub(super) fn without_status(old: &Value, new: &mut Value) {
    for key in [CONDITIONS, CURRENT_METRICS] {
        let before = at(old, "metadata.annotations").get(key).and_then(Value::as_str).map(str::to_owned);
        if at(new, "metadata.annotations").get(key).is_some() || before.is_some() {
            annotate(new, key, before);
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
    const METRICS_OF_BOTH: [(&str, &str); 5] = [
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
        for (v2, annotation) in METRICS_OF_BOTH {
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
