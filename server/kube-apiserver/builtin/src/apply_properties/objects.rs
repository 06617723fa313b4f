//! Generated objects of several kinds for the tests. Their fields, and the keys of their lists, are defined independently of
//! the schemas that the code under test uses.

use crowsnest_registry::strategy::Strategy as _;
use crowsnest_schema::decode::decode_value;
use crowsnest_schema::defaulting;
use crowsnest_schema::schema_set::SchemaSet;
use crowsnest_schema::{Schema, SchemaRef, prune};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Map, Value, json};

use crate::BuiltinStrategy;

type AnyValue = BoxedStrategy<Value>;
type Fields = Vec<(&'static str, AnyValue)>;

/// A kind, with a strategy that generates configurations of one object.
pub struct Kind {
    pub schema: SchemaRef,
    rules: Rules,
    pub configurations: AnyValue,
}

enum Rules {
    Builtin(BuiltinStrategy),
    Custom(Value),
}

impl Kind {
    fn builtin(group: &'static str, kind: &'static str, fields: Fields) -> Self {
        let api_version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
        Self {
            schema: SchemaSet::builtin().kind(group, "v1", kind).unwrap(),
            rules: Rules::Builtin(BuiltinStrategy::new(group, "v1", kind)),
            configurations: with_identity(api_version, kind, fields),
        }
    }

    /// The object as it is stored: decoded by its types, with defaults.
    pub fn to_stored(&self, object: Value) -> Value {
        let mut object = self.decode(object);
        match &self.rules {
            Rules::Builtin(strategy) => strategy.default(&mut object),
            Rules::Custom(schema) => defaulting::apply_defaults(schema, &mut object),
        }
        object
    }

    /// The decoded object without defaults.
    pub fn decode(&self, mut object: Value) -> Value {
        match &self.rules {
            Rules::Builtin(_) => {
                let decoded = decode_value(object, &self.schema);
                assert!(decoded.type_error.is_none(), "{:?}", decoded.type_error);
                decoded.object
            }
            Rules::Custom(_) => {
                assert!(prune(&self.schema, &mut object).is_empty(), "{object}");
                object
            }
        }
    }
}

fn with_identity(api_version: String, kind: &'static str, fields: Fields) -> AnyValue {
    let all = any_subset(fields).prop_map(move |mut object| {
        object["apiVersion"] = api_version.as_str().into();
        object["kind"] = kind.into();
        if object.get("metadata").is_none() {
            object["metadata"] = json!({});
        }
        object["metadata"]["name"] = "o".into();
        object
    });
    all.boxed()
}

fn one_of(values: Value) -> AnyValue {
    select(values.as_array().unwrap().clone()).boxed()
}

/// Generates objects with a subset of the fields.
fn any_subset(fields: Fields) -> AnyValue {
    let (names, values): (Vec<_>, Vec<_>) =
        fields.into_iter().map(|(name, value)| (name, proptest::option::of(value))).unzip();
    let object = values.prop_map(move |values| {
        let named = names.iter().zip(values).filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
        Value::Object(named.collect())
    });
    object.boxed()
}

/// Like [`any_subset`], but never empty: Go omits empty structs.
fn non_empty(fields: Fields) -> AnyValue {
    let (first, any) = (fields[0].0, fields[0].1.clone());
    let object = (any_subset(fields), any).prop_map(move |(mut object, value)| {
        if object.as_object().is_some_and(Map::is_empty) {
            object[first] = value;
        }
        object
    });
    object.boxed()
}

fn map(keys: &[&'static str], value: AnyValue) -> AnyValue {
    non_empty(keys.iter().map(|key| (*key, value.clone())).collect())
}

/// Generates non-empty subsets of the values in any order.
fn set(values: Value) -> AnyValue {
    let values = values.as_array().unwrap().clone();
    let count = values.len();
    subsequence(values, 1..=count).prop_shuffle().prop_map(Value::Array).boxed()
}

/// Generates lists of elements with these keys in any order, each with a subset of the fields.
fn elements(keys: Value, fields: Fields) -> AnyValue {
    let keys = keys.as_array().unwrap().clone();
    let (count, fields) = (keys.len(), any_subset(fields));
    let list = subsequence(keys, 1..=count).prop_shuffle().prop_flat_map(move |keys| {
        let elements: Vec<AnyValue> = keys.into_iter().map(|key| with_key(key, fields.clone())).collect();
        elements.prop_map(Value::Array)
    });
    list.boxed()
}

fn with_key(key: Value, fields: AnyValue) -> AnyValue {
    let element = fields.prop_map(move |mut element| {
        for (name, value) in key.as_object().unwrap() {
            element[name] = value.clone();
        }
        element
    });
    element.boxed()
}

fn metadata() -> AnyValue {
    let owners = json!([{"uid": "u1", "kind": "K", "name": "k", "apiVersion": "v1"}, {"uid": "u2", "kind": "K", "name": "l", "apiVersion": "v1"}]);
    non_empty(vec![
        ("labels", map(&["a", "b", "c"], one_of(json!(["1", "2"])))),
        ("annotations", map(&["d", "e.f/g"], one_of(json!(["1", "2"])))),
        ("finalizers", set(json!(["x/a", "x/b", "x/c"]))),
        ("ownerReferences", elements(owners, vec![("controller", one_of(json!([true])))])),
    ])
}

fn quantities() -> AnyValue {
    // Includes quantities that are not in canonical form.
    map(&["cpu", "memory"], one_of(json!(["1", "2", "2000m", "0.5", 1])))
}

fn containers() -> AnyValue {
    let source = one_of(json!([
        {"secretKeyRef": {"name": "s", "key": "k"}}, {"secretKeyRef": {"name": "s", "key": "l"}}, {"fieldRef": {"fieldPath": "metadata.name"}},
    ]));
    let variables = elements(
        json!([{"name": "A"}, {"name": "B"}, {"name": "C"}]),
        vec![("value", one_of(json!(["1", "2"]))), ("valueFrom", source)],
    );
    let ports = elements(
        json!([{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}, {"containerPort": 81, "protocol": "TCP"}]),
        vec![("name", one_of(json!(["p", "q"]))), ("hostPort", one_of(json!([1, 2])))],
    );
    let mounts = elements(
        json!([{"mountPath": "/a"}, {"mountPath": "/b"}]),
        vec![("name", one_of(json!(["v", "w"]))), ("readOnly", one_of(json!([true])))],
    );
    let get = non_empty(vec![("port", one_of(json!([80, 81, "p"]))), ("path", one_of(json!(["/", "/x"])))]);
    let probe = non_empty(vec![("httpGet", get), ("periodSeconds", one_of(json!([5, 6])))]);
    let security = non_empty(vec![
        ("runAsUser", one_of(json!([1, 2]))),
        ("capabilities", non_empty(vec![("add", set(json!(["X", "Y"]))), ("drop", one_of(json!([["ALL"]])))])),
    ]);
    elements(
        json!([{"name": "a"}, {"name": "b"}, {"name": "c"}]),
        vec![
            ("image", one_of(json!(["i:1", "i:2", "j"]))),
            ("args", one_of(json!([["x"], ["x", "y"], ["y", "x"]]))),
            ("env", variables),
            ("ports", ports),
            ("volumeMounts", mounts),
            ("livenessProbe", probe),
            ("securityContext", security),
            ("resources", non_empty(vec![("limits", quantities()), ("requests", quantities())])),
        ],
    )
}

fn pod_spec() -> AnyValue {
    let source = non_empty(vec![
        ("configMap", non_empty(vec![("name", one_of(json!(["m", "n"]))), ("defaultMode", one_of(json!([256, 384])))])),
        ("emptyDir", non_empty(vec![("sizeLimit", one_of(json!(["1Gi", "1024Mi"])))])),
    ]);
    let volumes = source.prop_map(|source| source.as_object().cloned().unwrap_or_default());
    let volumes = subsequence(vec!["v", "w", "x"], 1..=3).prop_shuffle().prop_flat_map(move |names| {
        let one = |name: &'static str| {
            volumes.clone().prop_map(move |mut volume| {
                volume.insert("name".to_owned(), name.into());
                Value::Object(volume)
            })
        };
        names.into_iter().map(one).collect::<Vec<_>>().prop_map(Value::Array)
    });
    let spread = elements(
        json!([
            {"topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}, {"topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"},
        ]),
        vec![
            ("maxSkew", one_of(json!([1, 2]))),
            ("labelSelector", one_of(json!([{"matchLabels": {"a": "1"}}, {"matchLabels": {"b": "1"}}]))),
        ],
    );
    non_empty(vec![
        ("containers", containers()),
        ("volumes", volumes.boxed()),
        ("nodeSelector", one_of(json!([{"a": "1"}, {"a": "1", "b": "2"}]))),
        ("tolerations", one_of(json!([[{"key": "k", "operator": "Exists"}], [{"operator": "Exists"}]]))),
        ("imagePullSecrets", elements(json!([{"name": "s"}, {"name": "t"}]), Vec::new())),
        (
            "hostAliases",
            elements(
                json!([{"ip": "1.1.1.1"}, {"ip": "1.1.1.2"}]),
                vec![("hostnames", one_of(json!([["h"], ["h", "i"]])))],
            ),
        ),
        ("topologySpreadConstraints", spread),
        ("serviceAccountName", one_of(json!(["d", "e"]))),
    ])
}

fn conditions() -> AnyValue {
    elements(
        json!([{"type": "Ready"}, {"type": "x/y"}]),
        vec![("status", one_of(json!(["True", "False"]))), ("reason", one_of(json!(["R", "S"])))],
    )
}

pub fn pod() -> Kind {
    Kind::builtin(
        "",
        "Pod",
        vec![
            ("metadata", metadata()),
            ("spec", pod_spec()),
            ("status", non_empty(vec![("phase", one_of(json!(["Pending", "Running"]))), ("conditions", conditions())])),
        ],
    )
}

pub fn deployment() -> Kind {
    let amounts = one_of(json!([1, 2, "25%", "50%"]));
    let rolling = non_empty(vec![("maxSurge", amounts.clone()), ("maxUnavailable", amounts)]);
    let strategy = non_empty(vec![("type", one_of(json!(["RollingUpdate", "Recreate"]))), ("rollingUpdate", rolling)]);
    let template = non_empty(vec![("metadata", metadata()), ("spec", pod_spec())]);
    let spec = non_empty(vec![
        ("replicas", one_of(json!([1, 2, 3]))),
        ("paused", one_of(json!([true]))),
        (
            "selector",
            one_of(json!([{"matchLabels": {"a": "1"}}, {"matchExpressions": [{"key": "a", "operator": "Exists"}]}])),
        ),
        ("strategy", strategy),
        ("template", template),
    ]);
    Kind::builtin("apps", "Deployment", vec![("metadata", metadata()), ("spec", spec)])
}

pub fn service() -> Kind {
    let ports = elements(
        json!([{"port": 80}, {"port": 80, "protocol": "UDP"}, {"port": 81, "protocol": "TCP"}, {"port": 82}]),
        vec![
            ("name", one_of(json!(["p", "q"]))),
            ("targetPort", one_of(json!([80, 8080, "p"]))),
            ("nodePort", one_of(json!([30000, 30001]))),
            ("appProtocol", one_of(json!(["http", "x/y"]))),
        ],
    );
    let spec = non_empty(vec![
        ("ports", ports),
        ("selector", one_of(json!([{"a": "1"}, {"a": "1", "b": "2"}]))),
        ("type", one_of(json!(["ClusterIP", "NodePort", "LoadBalancer"]))),
        ("externalIPs", one_of(json!([["1.1.1.1"], ["1.1.1.1", "1.1.1.2"]]))),
        ("sessionAffinity", one_of(json!(["ClientIP", "None"]))),
    ]);
    let condition = elements(json!([{"type": "A"}, {"type": "B"}]), vec![("status", one_of(json!(["True", "False"])))]);
    Kind::builtin(
        "",
        "Service",
        vec![("metadata", metadata()), ("spec", spec), ("status", non_empty(vec![("conditions", condition)]))],
    )
}

/// Schema of a custom resource with lists and maps of every type.
fn custom_resource_schema() -> Value {
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let with = |schema: &Value, member: &str, value: Value| {
        let mut schema = schema.clone();
        schema[member] = value;
        schema
    };
    let marks = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let amount = json!({"x-kubernetes-int-or-string": true});
    let locks = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"], "items": {"type": "object", "required": ["id"],
        "properties": {"id": {"type": "integer"}, "kind": {"type": "string"}, "keys": with(&texts, "x-kubernetes-list-type", json!("set"))}}});
    let doors = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "side"], "items": {"type": "object",
        "required": ["port"], "properties": {"port": {"type": "integer"}, "side": {"type": "string", "default": "left"}, "name": {"type": "string"},
            "locks": locks, "limits": {"type": "object", "additionalProperties": amount}}}});
    let spec = json!({"type": "object", "properties": {
        "size": {"type": "integer"}, "open": {"type": "boolean"}, "amount": amount, "mode": {"type": "string", "default": "auto"}, "tags": marks,
        "marks": with(&marks, "x-kubernetes-map-type", json!("atomic")), "colours": with(&texts, "x-kubernetes-list-type", json!("set")), "list": texts,
        "doors": doors, "deep": {"type": "object", "properties": {"tags": marks, "inner": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    json!({"type": "object", "properties": {"spec": spec, "status": {"type": "object", "properties": {"phase": {"type": "string"}}}}})
}

/// Generates the list or map, sometimes an empty one.
fn or_empty(any: AnyValue) -> AnyValue {
    let emptied = (any, prop::bool::weighted(0.15)).prop_map(|(value, is_empty)| match value {
        Value::Array(_) if is_empty => json!([]),
        Value::Object(_) if is_empty => json!({}),
        value => value,
    });
    emptied.boxed()
}

pub fn custom_resource() -> Kind {
    let schema = custom_resource_schema();
    let text = || one_of(json!(["", "1", "2"]));
    let amount = || one_of(json!([0, 1, "1", "50%"]));
    let locks = elements(
        json!([{"id": 0}, {"id": 1}, {"id": 2}]),
        vec![("kind", text()), ("keys", or_empty(set(json!(["k", "l", ""]))))],
    );
    let doors = elements(
        json!([{"port": 0}, {"port": 80, "side": "left"}, {"port": 80, "side": "right"}, {"port": 81}]),
        vec![("name", text()), ("locks", or_empty(locks)), ("limits", or_empty(map(&["x", "y"], amount())))],
    );
    let tags = || or_empty(map(&["a", "b", "c"], text()));
    let deep = non_empty(vec![("tags", tags()), ("inner", or_empty(non_empty(vec![("a", one_of(json!([0, 1])))])))]);
    let free = non_empty(vec![
        ("x", non_empty(vec![("y", one_of(json!([1, "1", [1, 2]]))), ("z", tags())])),
        ("list", or_empty(one_of(json!([[1], [{"a": 1}, {"a": 2}]])))),
    ]);
    let spec = non_empty(vec![
        ("size", one_of(json!([0, 1, 2]))),
        ("open", one_of(json!([true, false]))),
        ("amount", amount()),
        ("mode", one_of(json!(["auto", "hand"]))),
        ("tags", tags()),
        ("marks", or_empty(map(&["a", "b"], text()))),
        ("colours", or_empty(set(json!(["red", "green", "blue"])))),
        ("list", or_empty(set(json!(["x", "y"])))),
        ("doors", or_empty(doors)),
        ("deep", or_empty(deep)),
        ("free", or_empty(free)),
    ]);
    let fields = vec![("metadata", metadata()), ("spec", spec), ("status", non_empty(vec![("phase", text())]))];
    Kind {
        schema: Schema::for_custom_resource(&schema),
        configurations: with_identity("things.example.com/v1".to_owned(), "Thing", fields),
        rules: Rules::Custom(schema),
    }
}
