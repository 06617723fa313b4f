//! Property: the API server's validation accepts every aggregated status, for all sequences of reports from members.

use crowsnest_apimachinery::user::UserInfo;
use crowsnest_builtin::BuiltinStrategy;
use crowsnest_interpreter::default::native::find;
use crowsnest_interpreter::default::status::MemberStatus;
use crowsnest_registry::strategy::{RequestContext, Strategy as _};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

/// Number of members in each case, and of their reports.
const MEMBERS: usize = 3;
const REPORTS: usize = 5;

/// An optional time.
fn time() -> impl Strategy<Value = Option<String>> {
    prop::option::of((0..60_u8).prop_map(|second| format!("2026-01-01T00:00:{second:02}Z")))
}

fn object(fields: impl IntoIterator<Item = (&'static str, Option<Value>)>) -> Value {
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(fields.collect::<Map<_, _>>())
}

/// Valid statuses of Jobs in all supported versions: before 1.31 a Job can be complete without another condition.
fn job_status() -> BoxedStrategy<Value> {
    let conditions: [&[&str]; 7] = [
        &[],
        &["Suspended"],
        &["FailureTarget"],
        &["Failed"],
        &["FailureTarget", "Failed"],
        &["Complete"],
        &["SuccessCriteriaMet", "Complete"],
    ];
    let counters = (0..4_i64, 0..4_i64, 0..4_i64);
    (select(conditions.to_vec()), counters, time(), time())
        .prop_map(|(conditions, (active, succeeded, failed), start, completion)| {
            let conditions = conditions.iter().map(|kind| json!({"type": kind, "status": "True"}));
            object([
                ("active", Some(json!(active))),
                ("succeeded", Some(json!(succeeded))),
                ("failed", Some(json!(failed))),
                ("startTime", start.map(Value::from)),
                ("completionTime", completion.map(Value::from)),
                ("conditions", Some(conditions.collect())),
            ])
        })
        .boxed()
}

/// Counters in descending order.
fn counters(fields: &'static [&'static str]) -> BoxedStrategy<Value> {
    prop::collection::vec(0..9_i64, fields.len())
        .prop_map(move |mut values| {
            values.sort_unstable_by(|a, b| b.cmp(a));
            object(fields.iter().copied().zip(values.into_iter().map(|value| Some(json!(value)))))
        })
        .boxed()
}

fn phase(phases: &'static [&'static str]) -> BoxedStrategy<Value> {
    select(phases).prop_map(|phase| json!({"phase": phase})).boxed()
}

/// Statuses of Pods: a container of the template, one with its own restart policy, and one that a member injected.
fn pod_status() -> BoxedStrategy<Value> {
    let container = |name: &'static str| {
        let state = select(vec![
            json!({"waiting": {}}),
            json!({"running": {}}),
            json!({"terminated": {"exitCode": 0}}),
            json!({"terminated": {"exitCode": 1}}),
        ]);
        prop::option::of(state)
            .prop_map(move |state| state.map(|state| json!({"name": name, "ready": false, "state": state})))
    };
    let containers = (container("app"), container("sidecar"), container("injected"));
    (select(vec!["Pending", "Running", "Succeeded", "Failed"]), containers, container("init"))
        .prop_map(|(phase, (app, sidecar, injected), init)| {
            object([
                ("phase", Some(json!(phase))),
                ("containerStatuses", Some([app, sidecar, injected].into_iter().flatten().collect())),
                ("initContainerStatuses", Some(init.into_iter().collect())),
            ])
        })
        .boxed()
}

/// A kind with a template's `spec`, and the statuses that its members report.
struct Kind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    spec: Value,
    status: BoxedStrategy<Value>,
}

impl Kind {
    fn new(gvk: [&'static str; 3], spec: Value, status: BoxedStrategy<Value>) -> Self {
        let [group, version, kind] = gvk;
        Self { group, version, kind, spec, status }
    }

    fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
}

fn kinds() -> Vec<Kind> {
    let job = |spec: Value| Kind::new(["batch", "v1", "Job"], spec, job_status());
    let workload = |kind, fields| Kind::new(["apps", "v1", kind], json!({"replicas": 9}), counters(fields));
    let core = |kind, spec: Value, phases| Kind::new(["", "v1", kind], spec, phase(phases));
    let pod = |policy: &str| {
        let containers = json!([{"name": "app"}, {"name": "sidecar", "restartPolicy": "Always"}]);
        let spec = json!({"restartPolicy": policy, "containers": containers, "initContainers": [{"name": "init"}]});
        Kind::new(["", "v1", "Pod"], spec, pod_status())
    };
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let volume =
        json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/data"}});
    let daemons = &["desiredNumberScheduled", "currentNumberScheduled", "numberReady", "numberAvailable"];
    let budget = counters(&["expectedPods", "desiredHealthy", "currentHealthy", "disruptionsAllowed"]);
    vec![
        job(json!({"completions": 5, "parallelism": 2})),
        job(json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed"})),
        job(json!({"parallelism": 2, "suspend": true})),
        workload("Deployment", &["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"]),
        workload("StatefulSet", &["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"]),
        workload("ReplicaSet", &["replicas", "readyReplicas", "availableReplicas"]),
        workload("DaemonSet", daemons),
        core("Pod", json!({}), &["Pending", "Running", "Succeeded", "Failed"]),
        pod("Always"),
        pod("OnFailure"),
        pod("Never"),
        core("PersistentVolumeClaim", claim, &["Pending", "Bound", "Lost"]),
        core("PersistentVolume", volume, &["Pending", "Available", "Bound", "Released", "Failed"]),
        Kind::new(["policy", "v1", "PodDisruptionBudget"], json!({}), budget),
    ]
}

type Case = (usize, Vec<Vec<Option<Value>>>);

/// A kind, and consecutive reports of its members. A removed member no longer reports.
fn case() -> impl Strategy<Value = Case> {
    (0..kinds().len()).prop_flat_map(|index| {
        let status = kinds().swap_remove(index).status;
        let report = prop::collection::vec(prop::option::weighted(0.9, status), 0..=MEMBERS);
        (Just(index), prop::collection::vec(report, 1..REPORTS))
    })
}

proptest! {
    #[test]
    fn the_api_server_accepts_aggregated_statuses((index, reports) in case()) {
        let kind = kinds().swap_remove(index);
        let mut template = json!({"apiVersion": kind.api_version(), "kind": kind.kind, "spec": kind.spec});
        let native = find(&kind.api_version(), kind.kind).expect("a native kind");
        let server = BuiltinStrategy::new(kind.group, kind.version, kind.kind);
        let context = RequestContext {
            user: UserInfo::system(), now: jiff::Timestamp::UNIX_EPOCH, dry_run: false, subresource: "status".to_owned(),
            namespace: "default".to_owned(), record: None,
        };
        for (minute, report) in reports.iter().enumerate() {
            let members: Vec<MemberStatus<'_>> =
                report.iter().map(|status| MemberStatus { cluster: "member", status: status.as_ref() }).collect();
            let now = format!("2026-01-01T00:{:02}:00Z", minute + 1);
            let mut updated = template.clone();
            updated["status"] = native.aggregate(&template, &members, &now).expect("an aggregated kind");
            let errors = server.validate_update(&context, &template, &updated).errors;
            prop_assert!(errors.is_empty(), "{errors:?}\n{report:?}\n{template}\n{updated}");
            // Aggregating the same reports again changes nothing.
            let later = native.aggregate(&updated, &members, "2026-01-02T00:00:00Z").expect("an aggregated kind");
            prop_assert_eq!(&later, &updated["status"]);
            template = updated;
        }
    }
}
